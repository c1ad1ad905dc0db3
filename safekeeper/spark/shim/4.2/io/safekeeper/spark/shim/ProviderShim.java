package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/** What a provider is in Spark 4.2, where all maintenance is one. */
public abstract class ProviderShim implements StateStoreProvider {
  protected ProviderShim() {
    RunningSpark.check();
  }

  public void doSnapshotMaintenance() {}

  public void doCleanupMaintenance() {}
}
