package io.safekeeper.spark.shim;

import java.util.function.LongSupplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoder;
import org.apache.spark.sql.execution.streaming.state.RocksDBKeyStateEncoder;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomSizeMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map;

/** What Spark 4.0 says in its own way. */
public final class SparkShim {
  private SparkShim() {}

  /** A metric in bytes; for Spark 4.0 it is all the same whether it describes the state or what a batch did. */
  public static StateStoreCustomMetric sizeMetric(String name, String description, boolean ofTheState) {
    return new StateStoreCustomSizeMetric(name, description);
  }

  /** The numbers of a store. */
  public static StateStoreMetrics metrics(long keys, long memoryBytes, Map<StateStoreCustomMetric, Object> custom) {
    return new StateStoreMetrics(keys, memoryBytes, custom);
  }

  /** Whether keys are encoded so that their bytes sort as they do. */
  public static boolean supportsRangeScan(RocksDBKeyStateEncoder encoder) {
    return encoder instanceof RangeKeyScanStateEncoder;
  }

  /** Whether the keys between two others can be deleted at once. */
  public static boolean supportsDeleteRange(RocksDBKeyStateEncoder encoder) {
    return encoder instanceof RangeKeyScanStateEncoder;
  }

  /** That a task has failed, null if it has not; Spark 4.0 does not tell why. */
  public static Throwable failureOf(TaskContext task) {
    return task.isFailed() ? new IllegalStateException("the task has failed") : null;
  }

  /** What Spark expects when a store cannot be loaded. */
  public static Throwable cannotLoadStore(Throwable cause) {
    return QueryExecutionErrors.cannotLoadStore(cause);
  }

  /** Nothing: the driver of Spark 4.0 does not ask for commits. */
  public static void reportCommit(StateStoreConf conf, long version, StateStoreId id, Configuration hadoop) {}

  /** Nothing: the driver of Spark 4.0 does not ask for snapshots. */
  public static void reportSnapshot(StateStoreConf conf, long version, StateStoreId id, Configuration hadoop) {}

  /** Refuse rows that do not have the form that their schemas say. */
  public static void checkFormat(
      UnsafeRow key, StructType keys, UnsafeRow value, StructType values, StateStoreId id, StateStoreConf conf) {
    StateStoreProvider.validateStateRowFormat(key, keys, value, values, conf);
  }

  /** Nothing: the memory manager of Spark 4.0 knows only what was taken from it. */
  public static void accountFor(String name, LongSupplier bytes) {}
}
