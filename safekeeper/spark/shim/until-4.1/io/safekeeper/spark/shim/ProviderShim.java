package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import scala.Option;

/**
 * What a provider is up to Spark 4.1: no snapshot is forced, no load is empty, all maintenance is one. In 4.0 a task that
 * reads opens a second store to write.
 */
public abstract class ProviderShim implements StateStoreProvider {
  protected ProviderShim() {
    RunningSpark.check();
  }

  public abstract StateStore getStore(long version, Option<String> commitId, boolean forceSnapshot, boolean loadEmpty);

  public StateStore upgradeReadStoreToWriteStore(
      ReadStateStore store, long version, Option<String> commitId, boolean forceSnapshot) {
    return getStore(version, commitId, forceSnapshot, false);
  }

  public void doSnapshotMaintenance() {}

  public void doCleanupMaintenance() {}

  @Override
  public final StateStore getStore(long version, Option<String> commitId) {
    return getStore(version, commitId, false, false);
  }

  /** Spark 4.0 has no such method, and does not call it. */
  public final StateStore upgradeReadStoreToWriteStore(ReadStateStore store, long version, Option<String> commitId) {
    return upgradeReadStoreToWriteStore(store, version, commitId, false);
  }
}
