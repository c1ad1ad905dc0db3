package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomSizeMetric;

/** Metrics in bytes, up to Spark 4.2. */
public final class SizeMetricShim {
  private SizeMetricShim() {}

  /** A metric; for such a Spark it is all the same whether it describes the state or what a batch did. */
  public static StateStoreCustomMetric sizeMetric(String name, String description, boolean ofTheState) {
    return new StateStoreCustomSizeMetric(name, description);
  }
}
