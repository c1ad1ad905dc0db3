package io.safekeeper.spark.shim;

import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;

/** What a provider is in Spark 4.3: a trait whose state is kept here. */
public abstract class ProviderShim implements StateStoreProvider {
  private ReentrantReadWriteLock maintenanceLock;
  private volatile boolean unloaded;

  /** Without {@code $init$} there would be no lock, and each maintenance would fail. */
  protected ProviderShim() {
    RunningSpark.check();
    StateStoreProvider.$init$(this);
  }

  @Override
  public final boolean unloaded() {
    return unloaded;
  }

  @Override
  public final void unloaded_$eq(boolean value) {
    unloaded = value;
  }

  @Override
  public final ReentrantReadWriteLock maintenanceLock() {
    return maintenanceLock;
  }

  @Override
  public final void org$apache$spark$sql$execution$streaming$state$StateStoreProvider$_setter_$maintenanceLock_$eq(
      ReentrantReadWriteLock lock) {
    maintenanceLock = lock;
  }
}
