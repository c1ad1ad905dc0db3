package io.safekeeper.spark.shim;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoder;
import org.apache.spark.sql.execution.streaming.state.RocksDBKeyStateEncoder;

/** What Spark tells of key encodings and of tasks, up to Spark 4.1. */
public final class SparkShim {
  private SparkShim() {}

  /** Whether keys are encoded so that their bytes sort as they do. */
  public static boolean supportsRangeScan(RocksDBKeyStateEncoder encoder) {
    return encoder instanceof RangeKeyScanStateEncoder;
  }

  /** Whether the keys between two others can be deleted at once. */
  public static boolean supportsDeleteRange(RocksDBKeyStateEncoder encoder) {
    return encoder instanceof RangeKeyScanStateEncoder;
  }

  /** That a task has failed, null if it has not; such a Spark does not tell why. */
  public static Throwable failureOf(TaskContext task) {
    return task.isFailed() ? new IllegalStateException("the task has failed") : null;
  }
}
