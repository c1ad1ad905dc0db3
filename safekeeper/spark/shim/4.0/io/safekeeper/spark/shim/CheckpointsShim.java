package io.safekeeper.spark.shim;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.CheckpointFileManager;

/** Spark's interface for the files of checkpoints, in Spark 4.0. */
public abstract class CheckpointsShim implements CheckpointFileManager {
  /** Spark's own, by the given settings; null without settings. */
  protected final CheckpointFileManager others;

  protected CheckpointsShim(Path path, Configuration conf) {
    others = conf == null ? null : CheckpointFileManager.create(path, conf);
  }
}
