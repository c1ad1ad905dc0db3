package io.safekeeper.spark.shim;

import java.util.UUID;
import java.util.function.LongSupplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.memory.UnifiedMemoryManager;
import org.apache.spark.memory.UnmanagedMemoryConsumer;
import org.apache.spark.memory.UnmanagedMemoryConsumerId;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider$;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;

/** What Spark is told, and how: errors, numbers, commits, snapshots, memory; from 4.1 on. */
public final class ReportShim {
  private ReportShim() {}

  /** The numbers of a store. */
  public static StateStoreMetrics metrics(long keys, long memoryBytes, Map<StateStoreCustomMetric, Object> custom) {
    return new StateStoreMetrics(keys, memoryBytes, custom, Map$.MODULE$.empty());
  }

  /** What Spark expects when a store cannot be loaded. */
  public static Throwable cannotLoadStore(Throwable cause) {
    return StateStoreErrors.cannotLoadStore(cause);
  }

  /** Tell the Spark driver of a commit, if it wants to know. */
  public static void reportCommit(StateStoreConf conf, long version, StateStoreId id, Configuration hadoop) {
    if (conf.commitValidationEnabled()) {
      StateStore.reportCommitToCoordinator(version, id, hadoop);
    }
  }

  /**
   * Tell the Spark driver that all up to a version could be loaded again without the versions before it, as from a
   * snapshot. It warns of stores of which it hears nothing for long.
   */
  public static void reportSnapshot(StateStoreConf conf, long version, StateStoreId id, Configuration hadoop) {
    Option<StateStoreCoordinatorRef> driver = StateStoreProvider$.MODULE$.coordinatorRef();
    if (conf.reportSnapshotUploadLag() && driver.isDefined()) {
      UUID run = UUID.fromString(StateStoreProvider$.MODULE$.getRunId(hadoop));
      driver.get().snapshotUploaded(new StateStoreProviderId(id, run), version, System.currentTimeMillis());
    }
  }

  /** Refuse rows that do not have the form that their schemas say. */
  public static void checkFormat(
      UnsafeRow key, StructType keys, UnsafeRow value, StructType values, StateStoreId id, StateStoreConf conf) {
    StateStoreProvider.validateStateRowFormat(key, keys, value, values, id, conf);
  }

  /** Let Spark's memory manager know how much memory outside the heap is taken that it did not give. */
  public static void accountFor(String name, LongSupplier bytes) {
    UnifiedMemoryManager.registerUnmanagedMemoryConsumer(new UnmanagedMemoryConsumer() {
      @Override
      public UnmanagedMemoryConsumerId unmanagedMemoryConsumerId() {
        return new UnmanagedMemoryConsumerId("StateStore", name);
      }

      @Override
      public MemoryMode memoryMode() {
        return MemoryMode.OFF_HEAP;
      }

      @Override
      public long getMemBytesUsed() {
        return bytes.getAsLong();
      }
    });
  }
}
