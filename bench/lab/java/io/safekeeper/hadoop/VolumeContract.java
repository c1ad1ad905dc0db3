package io.safekeeper.hadoop;

import java.io.IOException;
import java.net.URI;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.apache.hadoop.fs.contract.ContractOptions;

/** What {@code safekeeper://} claims of Hadoop's contract for file systems. */
public final class VolumeContract extends AbstractFSContract {
  private static final String ROOT = "safekeeper://contract/";
  private static final List<String> CLAIMED = List.of(
      ContractOptions.IS_CASE_SENSITIVE,
      ContractOptions.CREATE_VISIBILITY_DELAYED,
      ContractOptions.REJECTS_SEEK_PAST_EOF,
      ContractOptions.SUPPORTS_CONTENT_CHECK,
      ContractOptions.SUPPORTS_GETFILESTATUS,
      ContractOptions.SUPPORTS_POSITIONED_READABLE,
      ContractOptions.SUPPORTS_SEEK,
      ContractOptions.SUPPORTS_STRICT_EXCEPTIONS,
      ContractOptions.TEST_ROOT_TESTS_ENABLED);

  public VolumeContract(Configuration conf) {
    super(conf);
    conf.set("fs.safekeeper.impl", "io.safekeeper.spark.files.VolumeFileSystem");
    conf.set("fs.safekeeper.url", System.getProperty("safekeeper.url"));
    conf.set("fs.safekeeper.python", System.getProperty("safekeeper.python"));
    CLAIMED.forEach(option -> conf.setBoolean(getConfKey(option), true));
    conf.setInt(getConfKey(ContractOptions.TEST_RANDOM_SEEK_COUNT), 100);
  }

  @Override
  public FileSystem getTestFileSystem() throws IOException {
    return FileSystem.get(URI.create(ROOT), getConf());
  }

  @Override
  public String getScheme() {
    return "safekeeper";
  }

  @Override
  public Path getTestPath() {
    return new Path(ROOT, "test");
  }
}
