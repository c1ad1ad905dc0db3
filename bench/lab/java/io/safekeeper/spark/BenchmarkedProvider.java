package io.safekeeper.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateSchemaProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Map$;

/**
 * What Spark's benchmark gets instead of its provider in memory: ours, with settings, which the benchmark has none of.
 * Only the store that {@link #getStore} returns is timed, and that is ours itself.
 */
public final class BenchmarkedProvider extends HDFSBackedStateStoreProvider {
  private final SafeKeeperStateStoreProvider ours = new SafeKeeperStateStoreProvider();

  @Override
  public void init(
      StateStoreId id,
      StructType keys,
      StructType values,
      KeyStateEncoderSpec encoding,
      boolean columnFamilies,
      StateStoreConf unused,
      Configuration hadoop,
      boolean multipleValuesPerKey,
      Option<StateSchemaProvider> schemas) {
    try {
      Path checkpoint = Path.of(id.checkpointRootLocation());
      Files.writeString(checkpoint.resolve("metadata"), "{\"id\":\"" + UUID.randomUUID() + "\"}");
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    SQLConf conf = new SQLConf();
    SuiteSettings.all().forEach(conf::setConfString);
    ours.init(
        new StateStoreId(id.checkpointRootLocation() + "/state", id.operatorId(), id.partitionId(), id.storeName()),
        keys,
        values,
        encoding,
        columnFamilies,
        new StateStoreConf(conf, Map$.MODULE$.empty()),
        hadoop,
        multipleValuesPerKey,
        schemas);
  }

  @Override
  public StateStore getStore(long version, Option<String> commitId, boolean forceSnapshot, boolean loadEmpty) {
    return ours.getStore(version, commitId, forceSnapshot, loadEmpty);
  }

  @Override
  public void close() {
    ours.close();
  }
}
