package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomSizeMetric;

/** Metrics in bytes, in Spark 4.3. */
public final class SizeMetricShim {
  private SizeMetricShim() {}

  /** A metric; {@code ofTheState} if it describes the state and not what a batch did. */
  public static StateStoreCustomMetric sizeMetric(String name, String description, boolean ofTheState) {
    return new StateStoreCustomSizeMetric(name, description, ofTheState);
  }
}
