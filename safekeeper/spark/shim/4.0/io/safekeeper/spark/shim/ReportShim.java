package io.safekeeper.spark.shim;

import java.util.function.LongSupplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map;

/** What Spark 4.0 is told, and how: errors, numbers, and nothing of commits, snapshots and memory. */
public final class ReportShim {
  private ReportShim() {}

  /** The numbers of a store. */
  public static StateStoreMetrics metrics(long keys, long memoryBytes, Map<StateStoreCustomMetric, Object> custom) {
    return new StateStoreMetrics(keys, memoryBytes, custom);
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
