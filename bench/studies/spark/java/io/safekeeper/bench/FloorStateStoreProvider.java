package io.safekeeper.bench;

import io.safekeeper.spark.shim.ProviderShim;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateSchemaProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/** The floor of the benchmark: a state store that stores nothing, so that all that is left is Spark's own work. */
public final class FloorStateStoreProvider extends ProviderShim {
  private StateStoreId id;

  /** For Spark. */
  public FloorStateStoreProvider() {}

  @Override
  public void init(
      StateStoreId stateStoreId,
      StructType keySchema,
      StructType valueSchema,
      KeyStateEncoderSpec encoding,
      boolean columnFamilies,
      StateStoreConf storeConf,
      Configuration configuration,
      boolean multipleValuesPerKey,
      Option<StateSchemaProvider> schemas) {
    id = stateStoreId;
  }

  @Override
  public StateStoreId stateStoreId() {
    return id;
  }

  @Override
  public StateStore getStore(long version, Option<String> commitId, boolean forceSnapshot, boolean loadEmpty) {
    return new FloorStateStore(id, version);
  }

  @Override
  public void close() {}
}
