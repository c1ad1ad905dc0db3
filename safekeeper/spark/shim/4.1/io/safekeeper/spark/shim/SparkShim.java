package io.safekeeper.spark.shim;

import java.util.UUID;
import java.util.function.LongSupplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.TaskContext;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.memory.UnifiedMemoryManager;
import org.apache.spark.memory.UnmanagedMemoryConsumer;
import org.apache.spark.memory.UnmanagedMemoryConsumerId;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoder;
import org.apache.spark.sql.execution.streaming.state.RocksDBKeyStateEncoder;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomSizeMetric;
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

/** What Spark 4.1 says in its own way. */
public final class SparkShim {
  private SparkShim() {}

  /** A metric in bytes; for Spark 4.1 it is all the same whether it describes the state or what a batch did. */
  public static StateStoreCustomMetric sizeMetric(String name, String description, boolean ofTheState) {
    return new StateStoreCustomSizeMetric(name, description);
  }

  /** The numbers of a store. */
  public static StateStoreMetrics metrics(long keys, long memoryBytes, Map<StateStoreCustomMetric, Object> custom) {
    return new StateStoreMetrics(keys, memoryBytes, custom, Map$.MODULE$.empty());
  }

  /** Whether keys are encoded so that their bytes sort as they do. */
  public static boolean supportsRangeScan(RocksDBKeyStateEncoder encoder) {
    return encoder instanceof RangeKeyScanStateEncoder;
  }

  /** Whether the keys between two others can be deleted at once. */
  public static boolean supportsDeleteRange(RocksDBKeyStateEncoder encoder) {
    return encoder instanceof RangeKeyScanStateEncoder;
  }

  /** That a task has failed, null if it has not; Spark 4.1 does not tell why. */
  public static Throwable failureOf(TaskContext task) {
    return task.isFailed() ? new IllegalStateException("the task has failed") : null;
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
