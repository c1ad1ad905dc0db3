package io.safekeeper.spark.shim;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.streaming.state.RocksDBKeyStateEncoder;

/** What Spark tells of key encodings and of tasks, from Spark 4.2 on. */
public final class SparkShim {
  private SparkShim() {}

  /** Whether keys are encoded so that their bytes sort as they do. */
  public static boolean supportsRangeScan(RocksDBKeyStateEncoder encoder) {
    return encoder.supportsRangeScan();
  }

  /** Whether the keys between two others can be deleted at once. */
  public static boolean supportsDeleteRange(RocksDBKeyStateEncoder encoder) {
    return encoder.supportsDeleteRange();
  }

  /** Why a task has failed, null if it has not. */
  public static Throwable failureOf(TaskContext task) {
    return task.getTaskFailure().getOrElse(() -> null);
  }
}
