package io.safekeeper.spark.files;

import io.safekeeper.spark.Sneaky;
import io.safekeeper.spark.shim.CheckpointsShim;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;

/**
 * How Spark writes checkpoints to {@code safekeeper://}: a file is written once, when it is closed, without a temporary
 * one and a rename. Of two drivers that create the same file one succeeds, and the other one is told.
 *
 * <p>Checkpoints on other file systems are written as Spark does it without this.
 */
public final class VolumeCheckpoints extends CheckpointsShim {
  private static final String CHOICE = "spark.sql.streaming.checkpointFileManagerClass";

  private final Path path;
  private final VolumeFileSystem files; // null: others does it all

  /** As Spark makes one, by the name of this class. */
  public VolumeCheckpoints(Path path, Configuration conf) throws IOException {
    super(path, VolumeFileSystem.SCHEME.equals(path.toUri().getScheme()) ? null : withoutUs(conf));
    FileSystem found = path.getFileSystem(conf);
    this.path = found.makeQualified(path);
    files = found instanceof VolumeFileSystem ours ? ours : null;
  }

  private static Configuration withoutUs(Configuration conf) {
    Configuration others = new Configuration(conf);
    others.unset(CHOICE);
    return others;
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path file, boolean overwriteIfPossible) {
    if (files == null) {
      return others.createAtomic(file, overwriteIfPossible);
    }
    VolumeOutput output = sneak(() -> files.output(file, !overwriteIfPossible));
    return new CancellableFSDataOutputStream(output) {
      @Override
      public void cancel() {
        output.discard();
      }
    };
  }

  @Override
  public FSDataInputStream open(Path file) {
    return files == null ? others.open(file) : sneak(() -> files.open(file));
  }

  @Override
  public FileStatus[] list(Path directory, PathFilter filter) {
    return files == null ? others.list(directory, filter) : sneak(() -> files.listStatus(directory, filter));
  }

  @Override
  public void mkdirs(Path directory) {
    if (files == null) {
      others.mkdirs(directory);
    } else {
      sneak(() -> files.mkdirs(directory));
    }
  }

  @Override
  public boolean exists(Path file) {
    return files == null ? others.exists(file) : sneak(() -> files.exists(file));
  }

  @Override
  public void delete(Path file) {
    if (files == null) {
      others.delete(file);
    } else {
      sneak(() -> files.delete(file, true)); // that it is not there is not an error
    }
  }

  @Override
  public boolean isLocal() {
    return files == null && others.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    if (files == null) {
      return others.createCheckpointDirectory();
    }
    mkdirs(path);
    return path;
  }

  private static <T> T sneak(VolumeErrors.Question<T> question) {
    try {
      return question.ask();
    } catch (IOException error) {
      throw Sneaky.sneak(error);
    }
  }
}
