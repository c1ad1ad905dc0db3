package io.safekeeper.spark;

import io.safekeeper.spark.commits.LoadedState;
import io.safekeeper.spark.shim.ReportShim;
import io.safekeeper.spark.shim.SizeMetricShim;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomSumMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What a query's progress and the Spark UI show about a store. */
final class StoreMetrics {
  private static final StateStoreCustomMetric ENCODE =
      time("safekeeperFrameMicros", "microseconds to build and compress commits");
  private static final StateStoreCustomMetric AGENT =
      time("safekeeperAgentMicros", "microseconds that commits spent on the way to the store");
  private static final StateStoreCustomMetric STORE =
      time("safekeeperStoreMicros", "microseconds that the backend took to make commits durable");
  private static final StateStoreCustomMetric LOAD =
      time("safekeeperLoadMicros", "microseconds to bring the state to the version that was asked for");
  private static final StateStoreCustomMetric COMMITS_READ =
      new StateStoreCustomSumMetric("safekeeperCommitsRead", "commits that were read for that");
  private static final StateStoreCustomMetric APPENDED = size("safekeeperAppendedBytes", "size of the changes", false);
  private static final StateStoreCustomMetric CLEANED =
      size("safekeeperCleanedBytes", "size of the old records that the cleaner moved", false);
  private static final StateStoreCustomMetric SHIPPED =
      size("safekeeperShippedBytes", "size of the commits as they were sent", false);
  private static final StateStoreCustomMetric LIVE = size("safekeeperLiveBytes", "size of the state", true);
  private static final StateStoreCustomMetric EXTENT =
      size("safekeeperExtentBytes", "size of the changes that a restart would have to replay", true);
  private static final StateStoreCustomMetric MEMORY =
      size("safekeeperMemoryBytes", "size of indexes and small states, which stay in memory", true);
  private static final StateStoreCustomMetric DISK =
      size("safekeeperDiskBytes", "size of the mapped files that the records are in", true);
  private static final StateStoreCustomMetric RESTARTS =
      new StateStoreCustomSumMetric("safekeeperAgentRestarts", "agents that had to be started again");
  private static final StateStoreCustomMetric PLANNED =
      new StateStoreCustomSumMetric("safekeeperPlannedFiles", "files that were planned for certain servers");
  private static final StateStoreCustomMetric HITS =
      new StateStoreCustomSumMetric("safekeeperFilesAsPlanned", "files that went to the planned servers");
  private static final StateStoreCustomMetric FORCED =
      new StateStoreCustomSumMetric("forceSnapshotCount", "number of stores that had forced snapshot");

  private StoreMetrics() {}

  static Seq<StateStoreCustomMetric> all() {
    return CollectionConverters.asScala(List.of(
            ENCODE, AGENT, STORE, LOAD, COMMITS_READ, APPENDED, CLEANED, SHIPPED, LIVE, EXTENT, MEMORY, DISK, RESTARTS,
            PLANNED, HITS, FORCED))
        .toSeq();
  }

  /** The numbers after a commit, or without one. */
  static StateStoreMetrics of(
      LoadedState state, long keys, LoadedState.Committed commit, boolean forced) {
    Map<StateStoreCustomMetric, Object> values = new LinkedHashMap<>();
    values.put(ENCODE, commit == null ? 0L : commit.encodeMicros());
    values.put(AGENT, commit == null ? 0L : commit.agentMicros());
    values.put(STORE, commit == null ? 0L : commit.storeMicros());
    values.put(LOAD, state.loadMicros());
    values.put(COMMITS_READ, state.commitsRead());
    values.put(APPENDED, commit == null ? 0L : commit.appended());
    values.put(CLEANED, commit == null ? 0L : commit.cleaned());
    values.put(SHIPPED, commit == null ? 0L : commit.shipped());
    values.put(LIVE, state.log().liveBytes());
    values.put(EXTENT, state.log().extentBytes());
    values.put(MEMORY, state.log().memoryBytes());
    values.put(DISK, state.log().diskBytes());
    values.put(RESTARTS, commit == null ? 0L : commit.agentRestarts());
    values.put(PLANNED, commit == null ? 0L : commit.planned());
    values.put(HITS, commit == null ? 0L : commit.hits());
    values.put(FORCED, forced ? 1L : 0L);
    return ReportShim.metrics(
        keys,
        state.log().memoryBytes() + state.log().diskBytes(),
        scala.collection.immutable.Map.from(CollectionConverters.asScala(values)));
  }

  /** Not Spark's own metric of times: it is in milliseconds, and many partitions with less than one sum to nothing. */
  private static StateStoreCustomMetric time(String name, String description) {
    return new StateStoreCustomSumMetric(name, description);
  }

  private static StateStoreCustomMetric size(String name, String description, boolean ofTheState) {
    return SizeMetricShim.sizeMetric(name, description, ofTheState);
  }
}
