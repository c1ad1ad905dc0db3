package io.safekeeper.spark.shim;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/** Spark's interface for the files of checkpoints, and what Spark itself has for other file systems. */
public abstract class CheckpointsShim implements CheckpointFileManager {
  private static final String CHOICE = "spark.sql.streaming.checkpointFileManagerClass";

  /** Spark's own; null for paths of the scheme that this one is for. */
  protected final CheckpointFileManager others;

  protected CheckpointsShim(Path path, Configuration conf, String scheme) {
    if (scheme.equals(path.toUri().getScheme())) {
      others = null;
    } else {
      Configuration withoutUs = new Configuration(conf);
      withoutUs.unset(CHOICE);
      others = CheckpointFileManager.create(path, withoutUs);
    }
  }
}
