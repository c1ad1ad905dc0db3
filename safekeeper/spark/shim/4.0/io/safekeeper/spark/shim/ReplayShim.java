package io.safekeeper.spark.shim;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.SupportsFineGrainedReplay;
import org.apache.spark.util.NextIterator;
import scala.Enumeration;
import scala.Option;
import scala.Tuple4;

/** What a provider adds that the state data source can replay, in Spark 4.0: it does not know the ids of commits. */
public interface ReplayShim extends SupportsFineGrainedReplay {
  StateStore replayStateFromSnapshot(
      long snapshotVersion, long endVersion, boolean readOnly, Option<String> snapshotId, Option<String> endId);

  NextIterator<Tuple4<Enumeration.Value, UnsafeRow, UnsafeRow, Object>> getStateStoreChangeDataReader(
      long startVersion, long endVersion, Option<String> family, Option<String> endId);

  /** Spark 4.0 only reads from what it gets. */
  @Override
  default StateStore replayStateFromSnapshot(long snapshotVersion, long endVersion) {
    return replayStateFromSnapshot(snapshotVersion, endVersion, true, Option.empty(), Option.empty());
  }

  @Override
  default NextIterator<Tuple4<Enumeration.Value, UnsafeRow, UnsafeRow, Object>> getStateStoreChangeDataReader(
      long startVersion, long endVersion, Option<String> family) {
    return getStateStoreChangeDataReader(startVersion, endVersion, family, Option.empty());
  }
}
