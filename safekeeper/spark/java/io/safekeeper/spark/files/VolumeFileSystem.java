package io.safekeeper.spark.files;

import io.safekeeper.spark.Cluster;
import io.safekeeper.spark.agent.Agent;
import io.safekeeper.spark.agent.AgentException;
import io.safekeeper.spark.agent.AgentFiles;
import io.safekeeper.spark.agent.AgentOptions;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsDirectoryException;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * {@code safekeeper://VOLUME/PATH}: a file system in any backend.
 *
 * <p>A file is there, whole and durable, when it was closed. One that is created without leave to overwrite fails at the
 * close if somebody else was quicker. Directories above a file are made with it. There is no rename, append,
 * truncation or permission.
 */
public final class VolumeFileSystem extends FileSystem {
  static final String SCHEME = "safekeeper";

  private URI uri;
  private Path workingDirectory;
  private AgentFiles files;
  private String scope;

  @Override
  public void initialize(URI name, Configuration conf) throws IOException {
    super.initialize(name, conf);
    setConf(conf);
    if (name.getAuthority() == null) {
      throw new IOException(name + " names no volume: write " + SCHEME + "://VOLUME/PATH, VOLUME being any name");
    }
    uri = URI.create(SCHEME + "://" + name.getAuthority());
    workingDirectory = new Path(uri + "/");
    AgentOptions options = new VolumeSettings(conf).agent();
    files = new AgentFiles(Agent.of(options));
    scope = files.scope(); // starts the agent, so that a wrong URL shows here
  }

  @Override
  public String getScheme() {
    return SCHEME;
  }

  @Override
  public URI getUri() {
    return uri;
  }

  @Override
  public String getCanonicalServiceName() {
    return null; // there are no tokens to fetch for it
  }

  @Override
  public Path getWorkingDirectory() {
    return workingDirectory;
  }

  @Override
  public void setWorkingDirectory(Path directory) {
    workingDirectory = makeQualified(directory);
  }

  @Override
  public FSDataInputStream open(Path file, int bufferSize) throws IOException {
    try {
      return new FSDataInputStream(new VolumeInput(files(), qualified(file), name(file)));
    } catch (PathIsDirectoryException error) { // Hadoop wants it so: there is no such file
      throw (IOException) new FileNotFoundException(qualified(file) + " is a directory").initCause(error);
    }
  }

  @Override
  public FSDataOutputStream create(
      Path file,
      FsPermission permission,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    try {
      FileStatus found = getFileStatus(file);
      if (found.isDirectory() || !overwrite) {
        throw new FileAlreadyExistsException(found.getPath() + (found.isDirectory() ? " is a directory" : " exists"));
      }
    } catch (FileNotFoundException error) {
      LOG.debug("{} is new", file);
    }
    return new FSDataOutputStream(output(file, !overwrite), statistics);
  }

  @Override
  public FSDataOutputStream createNonRecursive(
      Path file,
      FsPermission permission,
      EnumSet<CreateFlag> flags,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    Path above = qualified(file).getParent();
    if (above != null && !getFileStatus(above).isDirectory()) {
      throw new ParentNotDirectoryException(above + " is a file");
    }
    boolean overwrite = flags.contains(CreateFlag.OVERWRITE);
    return create(file, permission, overwrite, bufferSize, replication, blockSize, progress);
  }

  /** A file that is seen when it is closed; one that exists already is replaced, or else is an error then. */
  VolumeOutput output(Path file, boolean create) throws IOException {
    return new VolumeOutput(files(), qualified(file), name(file), create);
  }

  @Override
  public FSDataOutputStream append(Path file, int bufferSize, Progressable progress) {
    throw new UnsupportedOperationException(
        SCHEME + ":// has no append: write " + file + " anew, or another file beside it");
  }

  @Override
  public boolean rename(Path from, Path to) {
    throw new UnsupportedOperationException(
        SCHEME + ":// has no rename (of " + from + "): a file appears whole when it is closed, so nothing needs one. For"
            + " checkpoints of Spark set spark.sql.streaming.checkpointFileManagerClass="
            + VolumeCheckpoints.class.getName());
  }

  @Override
  public boolean delete(Path path, boolean recursive) throws IOException {
    try {
      VolumeErrors.of(qualified(path), () -> files().remove(name(path), recursive));
      return true;
    } catch (FileNotFoundException error) {
      return false;
    }
  }

  @Override
  public FileStatus[] listStatus(Path path) throws IOException {
    Path directory = qualified(path);
    try {
      List<AgentFiles.FileDetails> found = VolumeErrors.of(directory, () -> files().list(name(path)));
      return found.stream()
          .sorted(Comparator.comparing(AgentFiles.FileDetails::name))
          .map(status -> status(new Path(directory, new Path(null, null, status.name())), status))
          .toArray(FileStatus[]::new);
    } catch (IOException error) {
      if (error.getCause() instanceof AgentException cause && cause.code() == AgentException.Code.NOT_DIRECTORY) {
        return new FileStatus[] {getFileStatus(path)};
      }
      throw error;
    }
  }

  @Override
  public boolean mkdirs(Path directory, FsPermission permission) throws IOException {
    try {
      VolumeErrors.of(qualified(directory), () -> files().makeDirectory(name(directory)));
      return true;
    } catch (ParentNotDirectoryException error) {
      if (isPlainFile(directory)) {
        throw (IOException) new FileAlreadyExistsException(qualified(directory) + " is a file").initCause(error);
      }
      throw error;
    }
  }

  private boolean isPlainFile(Path path) throws IOException {
    try {
      return !getFileStatus(path).isDirectory();
    } catch (FileNotFoundException | ParentNotDirectoryException error) {
      return false;
    }
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    Path qualified = qualified(path);
    return status(qualified, VolumeErrors.of(qualified, () -> files().stat(name(path))));
  }

  private static FileStatus status(Path path, AgentFiles.FileDetails status) {
    return new FileStatus(
        status.size(), status.isDirectory(), 1, VolumeOutput.PART_BYTES, status.modified(), path);
  }

  /** The files, if all executors see them. */
  private AgentFiles files() {
    Cluster.requireScope(scope, "the store of " + uri, false);
    return files;
  }

  private Path qualified(Path path) {
    Path qualified = makeQualified(path);
    checkPath(qualified);
    return qualified;
  }

  /** The path as the agent knows it. */
  private String name(Path path) {
    return uri.getAuthority() + qualified(path).toUri().getPath();
  }
}
