package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.types.StructType;

/** What a store is in Spark 4.2, and what 4.3 added, which nobody calls here. */
public abstract class StoreShim implements StateStore {
  public abstract void registerColFamily(
      String name, StructType key, StructType value, KeyStateEncoderSpec encoding, boolean multiple, boolean internal);
}
