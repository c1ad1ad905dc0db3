package io.safekeeper.spark;

import io.safekeeper.spark.agent.Agent;
import io.safekeeper.spark.commits.CommitKey;
import io.safekeeper.spark.commits.Commits;
import io.safekeeper.spark.commits.History;
import io.safekeeper.spark.commits.LoadedState;
import io.safekeeper.spark.commits.MissingCommit;
import io.safekeeper.spark.commits.RetiredLogs;
import io.safekeeper.spark.shim.ProviderShim;
import io.safekeeper.spark.shim.ReplayShim;
import io.safekeeper.spark.shim.ReportShim;
import io.safekeeper.spark.state.Family;
import io.safekeeper.spark.state.StateLog;
import io.safekeeper.spark.state.StateMemory;
import io.safekeeper.spark.state.StateMemoryError;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.BooleanSupplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.memory.SparkOutOfMemoryError;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.StateSchemaProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreCheckpointInfo;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.NextIterator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Enumeration;
import scala.Option;
import scala.Tuple4;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;

/**
 * Keeps the state of a stateful query's partition in any safekeeper backend.
 *
 * <p>The state lives in this executor as a {@link StateLog}; a commit is what was appended to it, stored under an id
 * of its own by the {@link Agent} beside the executor. {@link ProviderSettings} are under {@code
 * spark.sql.streaming.stateStore.safekeeper.}
 */
public final class SafeKeeperStateStoreProvider extends ProviderShim implements ReplayShim {
  private static final Logger LOG = LoggerFactory.getLogger(SafeKeeperStateStoreProvider.class);

  /** The settings without effect that were told of. */
  private static final Set<List<String>> IGNORED = ConcurrentHashMap.newKeySet();

  /** Those that Spark's memory manager was told of. */
  private static final Set<StateMemory> MEMORIES = ConcurrentHashMap.newKeySet();

  /** States of closed providers that somebody still read. */
  private static final Queue<RetiredLogs> LEFT = new ConcurrentLinkedQueue<>();

  private final StateLease lease = new StateLease();
  private volatile boolean closed;
  private StateStoreId id;
  private StateStoreConf conf;
  private Configuration hadoopConf;
  private ProviderSettings settings;
  private Agent agent;
  private String scope;
  private FamilySpecs families;
  private QueryIdentity identity;
  private StateMemory memory;
  private Commits commits;
  private LoadedState state;
  private boolean locationChecked;
  private long reportNext; // the first version that the Spark driver is told of as of a snapshot

  /** For Spark, which also makes providers only to ask for their metrics: nothing happens before {@link #init}. */
  public SafeKeeperStateStoreProvider() {}

  /** Learn which store this is, and start the agent if there is none yet. */
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
    conf = storeConf;
    hadoopConf = configuration;
    settings = ProviderSettings.of(storeConf).check();
    sayWhatIsIgnored();
    families = new FamilySpecs(
        FamilySpec.of(FamilySpecs.DEFAULT, valueSchema, encoding, multipleValuesPerKey, false),
        columnFamilies);
    try {
      identity = QueryIdentity.of(stateStoreId, configuration);
      agent = Agent.of(settings.agent());
      scope = agent.scope();
    } catch (IOException error) {
      throw Sneaky.sneak(ReportShim.cannotLoadStore(error));
    }
    memory = StateMemory.in(Cluster.localFolders());
    memory.setBudget(settings.memoryBytes());
    if (MEMORIES.add(memory)) {
      ReportShim.accountFor("safekeeper", memory::memoryBytes);
    }
    commits = new Commits(agent, identity.group(), memory);
    state = new LoadedState(commits, settings.commits(), this::newLog);
  }

  /** Once in a JVM for the same settings: each partition has a provider. */
  private void sayWhatIsIgnored() {
    List<String> ignored = settings.ignored();
    if (!ignored.isEmpty() && IGNORED.add(ignored)) {
      LOG.warn("These settings are for other state stores and have no effect on safekeeper: {}", ignored);
    }
  }

  private StateLog newLog() {
    StateLog log = new StateLog(memory, conf.maxVersionsToRetainInMemory(), settings.leastCommitBytes());
    families.get(FamilySpecs.DEFAULT).keepOrder(log.defaultFamily());
    return log;
  }

  @Override
  public StateStoreId stateStoreId() {
    return id;
  }

  // ---- opening

  @Override
  public StateStore getStore(long version, Option<String> commitId, boolean forceSnapshot, boolean loadEmpty) {
    String key = commitId.getOrElse(() -> null);
    SafeKeeperStateStore reader = openInThisThread(version, key);
    if (reader != null && reader.isReadOnly() && !loadEmpty) {
      return upgraded(reader, forceSnapshot);
    }
    SafeKeeperStateStore store = new SafeKeeperStateStore(this, version, key, false, forceSnapshot);
    return open(store, () -> {
      if (loadEmpty) {
        state.moveToEmpty(version);
      } else {
        state.moveTo(version, key);
      }
    });
  }

  @Override
  public ReadStateStore getReadStore(long version, Option<String> commitId) {
    return openForReading(version, commitId.getOrElse(() -> null));
  }

  private SafeKeeperStateStore openForReading(long version, String commitId) {
    SafeKeeperStateStore writer = openInThisThread(version, commitId);
    if (writer != null && !writer.isReadOnly()) {
      return writer;
    }
    SafeKeeperStateStore store = new SafeKeeperStateStore(this, version, commitId, true, false);
    return open(store, () -> state.moveTo(version, commitId));
  }

  /**
   * The store that this thread has open already, if it is of that commit: to read and to write, a thread may have both
   * at once, and they are the same. Spark 4.0 needs it: its aggregations read from one store and write to another, and
   * its state data source opens a store to create families in and never ends it. Null if there is none.
   */
  private SafeKeeperStateStore openInThisThread(long version, String commitId) {
    if (lease.holderOfThisThread() instanceof SafeKeeperStateStore store
        && !store.isDone()
        && store.isOf(version, commitId)) {
      return store;
    }
    return null;
  }

  /** Let a task write to the store that it reads from: the state is loaded, and the lease is its own already. */
  @Override
  public StateStore upgradeReadStoreToWriteStore(
      ReadStateStore readStore, long version, Option<String> commitId, boolean forceSnapshot) {
    if (!(readStore instanceof SafeKeeperStateStore store) || !store.isReadOnly() || store.version() != version) {
      throw new IllegalArgumentException("only a store of that version that was opened for reading can be upgraded");
    }
    return upgraded(store, forceSnapshot);
  }

  private static SafeKeeperStateStore upgraded(SafeKeeperStateStore store, boolean forceSnapshot) {
    // The provider that opened it may have been unloaded meanwhile and the one that Spark asks be new: it has neither
    // lease nor state.
    try {
      store.provider().checkLocation();
    } catch (IOException | RuntimeException error) {
      throw Sneaky.sneak(ReportShim.cannotLoadStore(error));
    }
    store.upgrade(forceSnapshot);
    return store;
  }

  private interface Load {
    void run() throws IOException;
  }

  private SafeKeeperStateStore open(SafeKeeperStateStore store, Load load) {
    if (store.version() < 0) {
      throw Sneaky.sneak(QueryExecutionErrors.unexpectedStateStoreVersion(store.version()));
    }
    Cluster.requireScope(scope, settings.url().replaceFirst(":.*", ":"), state.log() == null);
    acquireLease(store);
    boolean opened = false;
    try {
      if (!store.isReadOnly()) {
        checkLocation();
      }
      LEFT.removeIf(RetiredLogs::free);
      state.freeRetired(); // what stores before this one gave up
      load.run();
      store.open(state.log());
      opened = true;
      return store;
    } catch (MissingCommit error) {
      Path place = new Path(identity.group());
      throw Sneaky.sneak(QueryExecutionErrors.failedToReadStreamingStateFileError(place, error));
    } catch (OutOfMemoryError error) {
      throw Sneaky.sneak(ReportShim.cannotLoadStore(outOfMemory("load", error)));
    } catch (IOException | RuntimeException error) {
      throw Sneaky.sneak(ReportShim.cannotLoadStore(error));
    } finally {
      if (!opened) {
        giveBack(store);
      }
    }
  }

  private void acquireLease(SafeKeeperStateStore store) {
    try {
      lease.acquire(store, settings.leaseMillis());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw Sneaky.sneak(ReportShim.cannotLoadStore(error));
    } catch (StateLease.Held error) {
      StringBuilder stack = new StringBuilder();
      for (StackTraceElement line : error.thread().getStackTrace()) {
        stack.append(line).append('\n');
      }
      throw Sneaky.sneak(QueryExecutionErrors.unreleasedThreadError(
          id.toString(), "LOAD", Thread.currentThread().toString(), error.thread().toString(),
          settings.leaseMillis(), stack.toString()));
    }
  }

  /** Let a store that has committed read once more, if nobody has the lease and the state is still what it committed. */
  boolean leaseAgain(SafeKeeperStateStore store, StateLog log, CommitKey committed) {
    if (!lease.acquireIfFree(store)) {
      return false;
    }
    if (state.log() == log && log.current().id().equals(committed.id())) {
      return true;
    }
    giveBack(store);
    return false;
  }

  /** The store is done with the state. */
  void giveBack(SafeKeeperStateStore store) {
    if (lease.isHeldBy(store)) {
      state.freeUnloaded();
      lease.release(store);
    }
    if (closed) {
      lease.ifFree(this::unload);
    }
  }

  private void unload() {
    state.unload();
    RetiredLogs retired = state.takeRetired();
    if (!retired.free()) {
      LEFT.add(retired);
    }
  }

  /** Rows of a store that another thread has ended may still be read: what they point into stays. */
  void keepWhile(SafeKeeperStateStore store, BooleanSupplier areRead) {
    if (lease.isHeldBy(store)) {
      state.keepWhile(areRead);
    }
  }

  boolean isLeasedBy(SafeKeeperStateStore store) {
    return lease.isHeldBy(store);
  }

  /** Before anything is written: two queries must not write one state, as they would with a copied checkpoint. */
  private void checkLocation() throws IOException {
    if (locationChecked) {
      return;
    }
    String here = identity.location();
    String there = commits.location().orElse(null);
    if (there != null && !there.equals(here) && !settings.adoptsMovedCheckpoint()) {
      throw new IllegalStateException(
          "the state of this query belongs to the checkpoint in " + there + ", not to the one in " + here
              + ": if it was moved there, set " + ProviderSettings.PREFIX + "movedCheckpoint=adopt; if it was copied,"
              + " start the copy with a new checkpoint");
    }
    if (!here.equals(there)) {
      commits.setLocation(here);
    }
    // The state data source takes the folders below the checkpoint for the list of the partitions.
    Path folder = id.storeCheckpointLocation();
    folder.getFileSystem(hadoopConf).mkdirs(folder);
    locationChecked = true;
  }

  /** The process that keeps this provider's commits. */
  Agent agent() {
    return agent;
  }

  // ---- for the store

  /** Send what is full of the next commit; return how many bytes must be uncommitted until it is asked for again. */
  long send() throws IOException {
    return state.send();
  }

  LoadedState.Committed commit() throws IOException {
    LoadedState.Committed committed = state.commit();
    LOG.info("Committed version {} of {}", committed.key().version(), id);
    ReportShim.reportCommit(conf, committed.key().version(), id, hadoopConf);
    reportSnapshot(committed.key().version());
    return committed;
  }

  /**
   * Tell the Spark driver of a commit as of a snapshot, which it is as good as: from any of them a restart is short.
   * Spark warns, batch after batch, of stores that are several times {@code minDeltasForSnapshot} versions behind.
   */
  private void reportSnapshot(long version) {
    if (version < reportNext) {
      return;
    }
    reportNext = version + conf.minDeltasForSnapshot();
    try {
      ReportShim.reportSnapshot(conf, version, id, hadoopConf);
    } catch (Exception | AssertionError error) { // the latter where a store belongs to no query, as in Spark's tests
      LOG.debug("The Spark driver could not be told of version {} of {}", version, id, error);
    }
  }

  /**
   * Give up the state, which there is no room for, so that the executor can go on: it is loaded again when it is
   * next asked for. Return what the task fails with.
   *
   * <p>The error must not be the cause of that, nor a cause of its cause: Spark would look for it there and end the
   * executor. Its own error for a lack of memory it knows not to be the end.
   */
  IllegalStateException outOfMemory(String operation, OutOfMemoryError error) {
    long keys = 0;
    long bytes = 0;
    try {
      StateLog log = state.log();
      keys = log == null ? 0 : log.roughSize();
      bytes = log == null ? 0 : log.memoryBytes() + log.diskBytes();
    } catch (OutOfMemoryError again) {
      LOG.debug("Not even the sizes can be found out");
    }
    state.unload(); // before anything that takes memory
    String sizes = bytes == 0 ? "" : keys + " keys took " + (bytes >> 20) + " MB, and ";
    String reason = error instanceof StateMemoryError
        ? error.getMessage()
        : "the heap for all tasks of this executor has " + (Runtime.getRuntime().maxMemory() >> 20)
            + " MB: give the executors more (spark.executor.memory), or the query more partitions";
    IllegalStateException failure = new IllegalStateException(
        "there is not enough memory to " + operation + " the state of " + id + ": " + sizes + reason);
    failure.addSuppressed(error);
    if (error instanceof StateMemoryError lacking) {
      failure.initCause(new SparkOutOfMemoryError(
          "UNABLE_TO_ACQUIRE_MEMORY",
          Map.of("requestedBytes", "" + lacking.wanted(), "receivedBytes", "" + lacking.left())));
    }
    LOG.error("{}", failure.getMessage());
    return failure;
  }

  /** Go back to the last commit; what cannot be undone is loaded again when it is next asked for. */
  void undo() {
    try {
      state.undo();
    } catch (OutOfMemoryError error) {
      outOfMemory("undo what was written to", error); // that is enough: what was written is gone
    } catch (RuntimeException | Error error) {
      state.unload();
      throw error;
    }
  }

  StateStoreCheckpointInfo checkpointInfo(CommitKey key) {
    boolean withIds = conf.enableStateStoreCheckpointIds();
    String parent = key.parent().equals(CommitKey.NO_PARENT) ? null : key.parent();
    return new StateStoreCheckpointInfo(
        id.partitionId(),
        key.version(),
        Option.apply(withIds ? key.id() : null),
        Option.apply(withIds ? parent : null));
  }

  StateStoreMetrics metrics(SafeKeeperStateStore store, LoadedState.Committed committed, boolean forcedSnapshot) {
    StateLog log = state.log();
    if (log == null || !store.canRead()) {
      return ReportShim.metrics(0, 0, Map$.MODULE$.empty());
    }
    long keys = log.size(log.defaultFamily());
    for (String name : log.names().keySet()) {
      FamilySpec spec = families.get(name);
      keys += spec != null && spec.internal() ? 0 : log.size(log.family(name));
    }
    return StoreMetrics.of(state, keys, committed, forcedSnapshot);
  }

  void checkFormat(UnsafeRow key, UnsafeRow value, FamilySpec spec) {
    if (!families.areSeveral()) {
      ReportShim.checkFormat(key, spec.keySchema(), value, spec.valueSchema(), id, conf);
    }
  }

  FamilySpecs families() {
    return families;
  }

  // ---- replay

  /** Every version can be loaded by itself, so the snapshot's only has to be one that the other descends from. */
  @Override
  public StateStore replayStateFromSnapshot(
      long snapshotVersion, long endVersion, boolean readOnly, Option<String> snapshotId, Option<String> endId) {
    if (snapshotVersion < 1) {
      throw Sneaky.sneak(QueryExecutionErrors.unexpectedStateStoreVersion(snapshotVersion));
    }
    if (endVersion < snapshotVersion) {
      throw Sneaky.sneak(QueryExecutionErrors.unexpectedStateStoreVersion(endVersion));
    }
    String last = endId.getOrElse(() -> null);
    SafeKeeperStateStore store = new SafeKeeperStateStore(this, endVersion, last, readOnly, false);
    return open(store, () -> {
      List<CommitKey> chain = chain(commits.history(), snapshotVersion, endVersion, last);
      CommitKey first = chain.get(0);
      if (snapshotId.isDefined() && !snapshotId.get().equals(first.id())) {
        throw new MissingCommit(snapshotVersion, snapshotId.get());
      }
      state.moveTo(endVersion, chain.get(chain.size() - 1).id());
    });
  }

  @Override
  public NextIterator<Tuple4<Enumeration.Value, UnsafeRow, UnsafeRow, Object>> getStateStoreChangeDataReader(
      long startVersion, long endVersion, Option<String> family, Option<String> endId) {
    try {
      String last = endId.getOrElse(() -> null);
      History history = commits.history();
      List<CommitKey> chain = chain(history, startVersion, endVersion, last);
      String name = family.getOrElse(() -> FamilySpecs.DEFAULT);
      return new ChangeFeed(commits, history, chain, familyNumber(name, endVersion, last), families.get(name));
    } catch (IOException | MissingCommit error) {
      Path place = new Path(identity.group(), String.valueOf(endVersion));
      throw Sneaky.sneak(QueryExecutionErrors.failedToReadStreamingStateFileError(place, error));
    }
  }

  /** The commits that led from one version to another, both included. */
  private static List<CommitKey> chain(History history, long first, long last, String lastId) {
    CommitKey commit = history.find(last, lastId).orElseThrow(() -> new MissingCommit(last, lastId));
    List<CommitKey> chain = new ArrayList<>(List.of(commit));
    while (commit.version() > first) {
      commit = history.parentOf(commit);
      chain.add(commit);
    }
    Collections.reverse(chain);
    return chain;
  }

  /** Families are numbered in the state itself, so for all but the default one it has to be loaded. */
  private int familyNumber(String name, long version, String commitId) {
    if (name.equals(FamilySpecs.DEFAULT)) {
      return Family.DEFAULT;
    }
    boolean isOpen = openInThisThread(version, commitId) != null;
    SafeKeeperStateStore store = openForReading(version, commitId);
    try {
      Integer number = state.log().names().get(name);
      return number == null ? Family.CATALOG : number;
    } finally {
      if (!isOpen) {
        store.release();
      }
    }
  }

  // ---- maintenance

  /** Delete the commits that no retained version needs. */
  @Override
  public void doCleanupMaintenance() {
    try {
      int deleted = commits.deleteGarbage(conf.minVersionsToRetain(), conf.minVersionsToDelete());
      LOG.debug("Deleted {} old commits of {}", deleted, id);
    } catch (IOException | RuntimeException error) {
      LOG.warn("Old commits of {} could not be deleted; the next maintenance tries again", id, error);
    }
  }

  /** There are no snapshots: the cleaner keeps the chain of commits short as part of each commit. */
  @Override
  public void doSnapshotMaintenance() {}

  @Override
  public void doMaintenance() {
    doCleanupMaintenance();
  }

  @Override
  public void close() {
    closed = true;
    lease.ifFree(this::unload);
  }

  @Override
  public Seq<StateStoreCustomMetric> supportedCustomMetrics() {
    return StoreMetrics.all();
  }

  @Override
  public String toString() {
    return "SafeKeeperStateStoreProvider[" + id + "]";
  }
}
