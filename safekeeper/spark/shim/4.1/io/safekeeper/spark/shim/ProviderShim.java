package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import scala.Option;

/** What a provider is in Spark 4.1: no snapshot is forced, no load is empty, and all maintenance is one. */
public abstract class ProviderShim implements StateStoreProvider {
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

  @Override
  public final StateStore upgradeReadStoreToWriteStore(ReadStateStore store, long version, Option<String> commitId) {
    return upgradeReadStoreToWriteStore(store, version, commitId, false);
  }
}
