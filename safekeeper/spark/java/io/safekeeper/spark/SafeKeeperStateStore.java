package io.safekeeper.spark;

import io.safekeeper.spark.commits.LoadedState;
import io.safekeeper.spark.shim.SparkShim;
import io.safekeeper.spark.shim.StoreShim;
import io.safekeeper.spark.state.Addresses;
import io.safekeeper.spark.state.Pages;
import io.safekeeper.spark.state.Record;
import io.safekeeper.spark.state.StateLog;
import io.safekeeper.spark.state.ValueList;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateStoreCheckpointInfo;
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.TaskCompletionListener;
import scala.Option;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.BoxedUnit;

/**
 * One version of a partition's state, open for a task: what Spark reads and writes row by row.
 *
 * <p>It holds the provider's {@link StateLease} until the task is over, or until commit, abort or release when there is
 * no task; then each read of what was committed takes it for itself. Rows that it returns point into the pages and are
 * used again by the next call; when the lease is given back they get bytes of their own ({@link HandedRows}).
 *
 * <p>A task may have several threads: whoever looks into the state has this object's lock, and so has who ends it.
 */
final class SafeKeeperStateStore extends StoreShim implements StateLease.Holder {
  private enum Phase {
    UPDATING,
    COMMITTED,
    ABORTED,
    RELEASED
  }

  private final SafeKeeperStateStoreProvider provider;
  private final long version;
  private final String commitId;
  private StateLog log;
  private FamilyViews families;
  private HandedRows rows = new HandedRows(this);
  private boolean readOnly;
  private boolean forcedSnapshot;
  private boolean inTask;
  private boolean checkedFormat;
  private long sendAt; // when so many bytes are uncommitted, what is full is sent
  private volatile boolean busy = true; // until it is loaded, and in a commit
  private volatile Phase phase = Phase.UPDATING;
  private LoadedState.Committed committed;
  private StateStoreMetrics lastMetrics;

  /**
   * @param commitId which commit of that version, null where Spark does not know
   */
  SafeKeeperStateStore(
      SafeKeeperStateStoreProvider provider,
      long version,
      String commitId,
      boolean readOnly,
      boolean forcedSnapshot) {
    this.provider = provider;
    this.version = version;
    this.commitId = commitId;
    this.readOnly = readOnly;
    this.forcedSnapshot = forcedSnapshot;
  }

  SafeKeeperStateStoreProvider provider() {
    return provider;
  }

  /** The state is loaded; from here on the store can be used, until the task is over. */
  void open(StateLog loaded) {
    busy = false;
    log = loaded;
    families = new FamilyViews(provider.families(), log);
    TaskContext task = TaskContext.get();
    if (task == null) {
      return;
    }
    inTask = true;
    task.addTaskCompletionListener((TaskCompletionListener) context -> finish());
    // A task that has failed meanwhile has run the listener already: nobody would release the lease again.
    task.killTaskIfInterrupted();
    Throwable failure = SparkShim.failureOf(task);
    if (failure != null) {
      throw Sneaky.sneak(failure);
    }
  }

  /** Let a store that was opened for reading be written to. */
  synchronized void upgrade(boolean forceSnapshot) {
    readOnly = false;
    forcedSnapshot = forceSnapshot;
  }

  boolean isOf(long otherVersion, String otherId) {
    return version == otherVersion && Objects.equals(commitId, otherId);
  }

  boolean isReadOnly() {
    return readOnly;
  }

  private synchronized void finish() {
    try {
      if (phase == Phase.UPDATING) {
        if (readOnly) {
          release();
        } else {
          abort();
        }
      }
    } finally {
      leave();
    }
  }

  /** Be done with the state: nothing that was handed out points into it any more. */
  private void leave() {
    try {
      endRows();
    } finally {
      provider.giveBack(this);
    }
  }

  @Override
  public synchronized void endRows() {
    if (!rows.end()) {
      provider.keepWhile(this, rows.kept()::areRead);
    }
  }

  @Override
  public StateStoreId id() {
    return provider.stateStoreId();
  }

  @Override
  public long version() {
    return version;
  }

  // ---- reading

  @Override
  public synchronized UnsafeRow get(UnsafeRow key, String family) {
    if (isLeft()) {
      return again("get", () -> copied(get(key, family)));
    }
    FamilyView view = reading("get", family);
    int address = find(view, key);
    if (address == 0) {
      return null;
    }
    long record = log.pages().at(address);
    long at = Record.valueAt(null, record);
    int length = Record.valueLength(null, record);
    boolean ours = rows.use(view);
    UnsafeRow value = ours ? view.value() : new UnsafeRow(view.spec().valueFields());
    if (view.spec().multiple()) {
      ValueList.Rows values = new ValueList.Rows(null, at, length, value);
      if (!values.hasNext()) {
        return null;
      }
      values.next();
    } else {
      value.pointTo(null, at, length);
    }
    if (!checkedFormat && !view.spec().multiple()) {
      provider.checkFormat(key, value, view.spec());
      checkedFormat = true;
    }
    return ours ? value : value.copy();
  }

  @Override
  public synchronized Iterator<UnsafeRow> multiGet(UnsafeRow[] keys, String family) {
    if (!isLeft()) {
      reading("multiGet", family);
    }
    return new AbstractIterator<>() {
      private int at;

      @Override
      public boolean hasNext() {
        return at < keys.length;
      }

      @Override
      public UnsafeRow next() {
        return get(keys[at++], family);
      }
    };
  }

  @Override
  public synchronized boolean keyExists(UnsafeRow key, String family) {
    return isLeft()
        ? again("keyExists", () -> keyExists(key, family))
        : find(reading("keyExists", family), key) != 0;
  }

  @Override
  public synchronized Iterator<UnsafeRow> valuesIterator(UnsafeRow key, String family) {
    if (isLeft()) {
      return again("valuesIterator", () -> copied(valuesIterator(key, family), UnsafeRow::copy));
    }
    FamilyView view = lists("valuesIterator", family);
    int address = find(view, key);
    UnsafeRow row = new UnsafeRow(view.spec().valueFields());
    if (address == 0) {
      return new ValueList.Rows(null, 0, 0, row);
    }
    long record = log.pages().at(address);
    return new ListedRows(rows, Record.valueAt(null, record), Record.valueLength(null, record), row).iterator();
  }

  // Outside a task nobody keeps the pages for whoever reads what was committed: he gets copies.

  private static UnsafeRow copied(UnsafeRow row) {
    return row == null ? null : row.copy();
  }

  private static UnsafeRowPair copied(UnsafeRowPair pair) {
    return new UnsafeRowPair(copied(pair.key()), copied(pair.value()));
  }

  private static <T> Iterator<T> copied(Iterator<T> rows, UnaryOperator<T> copy) {
    List<T> copies = new ArrayList<>();
    while (rows.hasNext()) {
      copies.add(copy.apply(rows.next()));
    }
    return CollectionConverters.asScala(copies.iterator());
  }

  private static StateStoreIterator<UnsafeRowPair> copied(StateStoreIterator<UnsafeRowPair> pairs) {
    return new StateStoreIterator<>(copied(pairs, SafeKeeperStateStore::copied), () -> BoxedUnit.UNIT);
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> iterator(String family) {
    return scan("iterator", family, this::all);
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> iteratorWithMultiValues(String family) {
    return scanValues("iteratorWithMultiValues", family, this::all);
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> prefixScan(UnsafeRow prefix, String family) {
    return scan("prefixScan", family, view -> startingWith(view, prefix));
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> prefixScanWithMultiValues(UnsafeRow prefix, String family) {
    return scanValues("prefixScanWithMultiValues", family, view -> startingWith(view, prefix));
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> rangeScan(Option<UnsafeRow> from, Option<UnsafeRow> to, String family) {
    return scan("rangeScan", family, view -> between(view, from, to));
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> rangeScanWithMultiValues(
      Option<UnsafeRow> from, Option<UnsafeRow> to, String family) {
    return scanValues("rangeScanWithMultiValues", family, view -> between(view, from, to));
  }

  private int find(FamilyView view, UnsafeRow key) {
    return view.family() == null
        ? 0
        : log.find(view.family(), key.getBaseObject(), key.getBaseOffset(), key.getSizeInBytes());
  }

  /** Keys with one value each. */
  private synchronized StateStoreIterator<UnsafeRowPair> scan(
      String operation, String family, Function<FamilyView, Addresses> keys) {
    return isLeft()
        ? again(operation, () -> copied(scan(operation, family, keys)))
        : pairs(reading(operation, family), keys, false);
  }

  /** Keys with each of their values. */
  private synchronized StateStoreIterator<UnsafeRowPair> scanValues(
      String operation, String family, Function<FamilyView, Addresses> keys) {
    return isLeft()
        ? again(operation, () -> copied(scanValues(operation, family, keys)))
        : pairs(lists(operation, family), keys, true);
  }

  private StateStoreIterator<UnsafeRowPair> pairs(
      FamilyView view, Function<FamilyView, Addresses> keys, boolean everyValue) {
    try {
      Addresses addresses = keys.apply(view); // first: the index may learn of puts, and the table of pages change
      return RowPairs.over(rows, log.pages().table(), addresses, view.spec(), everyValue);
    } catch (OutOfMemoryError error) {
      throw outOfMemory("read", error);
    }
  }

  private Addresses all(FamilyView view) {
    return view.family() == null ? () -> 0 : log.all(view.family());
  }

  private Addresses startingWith(FamilyView view, UnsafeRow prefix) {
    require(view.spec().encoder().supportPrefixKeyScan(), "a prefix scan needs a key encoding with a prefix");
    byte[] encoded = view.spec().encoder().encodePrefixKey(prefix);
    return view.family() == null ? () -> 0 : view.family().ordered().startingWith(encoded);
  }

  private Addresses between(FamilyView view, Option<UnsafeRow> from, Option<UnsafeRow> to) {
    require(SparkShim.supportsRangeScan(view.spec().encoder()), "a range scan needs a key encoding that is ordered");
    return view.family() == null ? () -> 0 : view.family().ordered().between(encoded(view, from), encoded(view, to));
  }

  private static byte[] encoded(FamilyView view, Option<UnsafeRow> key) {
    return key.isEmpty() ? null : view.spec().encoder().encodeKey(key.get());
  }

  // ---- writing

  @Override
  public synchronized void put(UnsafeRow key, UnsafeRow value, String family) {
    requireValue(value, "put");
    FamilyView view = writing("put", family);
    if (view.spec().multiple()) {
      putList(key, new UnsafeRow[] {value}, family);
      return;
    }
    try {
      append(view, key, value.getBaseObject(), value.getBaseOffset(), value.getSizeInBytes(), 0);
    } catch (OutOfMemoryError error) {
      throw outOfMemory("change", error);
    }
  }

  @Override
  public synchronized void putList(UnsafeRow key, UnsafeRow[] values, String family) {
    FamilyView view = writing("putList", family);
    requireLists(view, "putList");
    try {
      byte[] list = new byte[ValueList.sizeOf(values)];
      ValueList.write(values, list, 0);
      append(view, key, list, Record.at(0), list.length, 0);
    } catch (OutOfMemoryError error) {
      throw outOfMemory("change", error);
    }
  }

  @Override
  public void merge(UnsafeRow key, UnsafeRow value, String family) {
    requireValue(value, "merge");
    mergeList(key, new UnsafeRow[] {value}, family);
  }

  @Override
  public synchronized void mergeList(UnsafeRow key, UnsafeRow[] values, String family) {
    FamilyView view = writing("merge", family);
    requireLists(view, "merge");
    try {
      appendToList(view, key, values);
    } catch (OutOfMemoryError error) {
      throw outOfMemory("change", error);
    }
  }

  private void appendToList(FamilyView view, UnsafeRow key, UnsafeRow[] values) {
    int address = find(view, key);
    long record = address == 0 ? 0 : log.pages().at(address);
    int before = address == 0 ? 0 : Record.valueLength(null, record);
    int added = ValueList.sizeOf(values);
    byte[] list = new byte[Math.addExact(before, added)];
    if (address != 0) {
      Platform.copyMemory(null, Record.valueAt(null, record), list, Record.at(0), before);
    }
    ValueList.write(values, list, before);
    append(view, key, list, Record.at(0), list.length, added);
  }

  @Override
  public synchronized void remove(UnsafeRow key, String family) {
    FamilyView view = writing("remove", family);
    try {
      log.remove(view.family(), key.getBaseObject(), key.getBaseOffset(), key.getSizeInBytes());
      sendFull();
    } catch (OutOfMemoryError error) {
      throw outOfMemory("change", error);
    }
  }

  @Override
  public synchronized void deleteRange(UnsafeRow from, UnsafeRow to, String family) {
    FamilyView view = writing("deleteRange", family);
    require(SparkShim.supportsDeleteRange(view.spec().encoder()), "deleteRange needs a RangeKeyScanStateEncoderSpec");
    long[] table = log.pages().table();
    try {
      Addresses doomed = between(view, Option.apply(from), Option.apply(to));
      for (int address = doomed.next(); address != 0; address = doomed.next()) {
        long record = Pages.at(table, address);
        log.remove(view.family(), null, Record.keyAt(null, record), Record.keyLength(null, record));
        sendFull();
      }
    } catch (OutOfMemoryError error) {
      throw outOfMemory("change", error);
    }
  }

  /** There is no memory for an operation: the store is aborted, and its state given up. Return what to throw. */
  private IllegalStateException outOfMemory(String operation, OutOfMemoryError error) {
    IllegalStateException failure = provider.outOfMemory(operation, error);
    if (phase == Phase.UPDATING) {
      log = null;
      families = null;
      end(Phase.ABORTED);
    }
    return failure;
  }

  private void append(FamilyView view, UnsafeRow key, Object value, long valueAt, int valueLength, int added) {
    Object keyBase = key.getBaseObject();
    log.put(
        view.family(), keyBase, key.getBaseOffset(), key.getSizeInBytes(), value, valueAt, valueLength, added);
    sendFull();
  }

  /** After a change: what is full of a large commit leaves for the store at once, and a store that is slow is waited for. */
  private void sendFull() {
    if (log.uncommittedBytes() < sendAt) {
      return;
    }
    busy = true;
    try {
      sendAt = provider.send();
    } catch (IOException error) {
      throw Sneaky.sneak(QueryExecutionErrors.failedToCommitStateFileError(toString(), error));
    } finally {
      busy = false;
    }
  }

  // ---- column families

  @Override
  public synchronized void createColFamilyIfAbsent(
      String name, StructType key, StructType value, KeyStateEncoderSpec encoding, boolean multiple, boolean internal) {
    registerColFamily(name, key, value, encoding, multiple, internal);
    if (!readOnly && !name.equals(FamilySpecs.DEFAULT)) {
      try {
        families.create(name);
      } catch (OutOfMemoryError error) {
        throw outOfMemory("change", error);
      }
    }
  }

  /** Tell how a family's keys are encoded, without creating it: what the state data source does. */
  @Override
  public synchronized void registerColFamily(
      String name, StructType key, StructType value, KeyStateEncoderSpec encoding, boolean multiple, boolean internal) {
    checkPhase("create_col_family");
    provider.families().add(FamilySpec.of(name, value, encoding, multiple, internal));
  }

  @Override
  public synchronized boolean removeColFamilyIfExists(String name) {
    checkPhase("remove_col_family");
    try {
      return families.remove(name);
    } catch (OutOfMemoryError error) {
      throw outOfMemory("change", error);
    }
  }

  @Override
  public synchronized scala.collection.immutable.Set<String> allColumnFamilyNames() {
    if (isLeft()) {
      return again("allColumnFamilyNames", this::allColumnFamilyNames);
    }
    if (!canRead()) {
      checkPhase("allColumnFamilyNames");
    }
    Set<String> names = new HashSet<>(log.names().keySet());
    names.add(FamilySpecs.DEFAULT);
    return CollectionConverters.asScala(names).toSet();
  }

  /** Whether it has committed outside a task, so that nobody has kept the lease for it. */
  private boolean isLeft() {
    return phase == Phase.COMMITTED && !inTask && !provider.isLeasedBy(this);
  }

  /** Whether the state is there: whoever takes the lease ends the rows first, and frees pages when he has it. */
  boolean canRead() {
    return provider.isLeasedBy(this) && !rows.isOver();
  }

  /** Take the lease for one read. Refused if another store has it, or has changed what was committed since. */
  private <T> T again(String operation, Supplier<T> read) {
    if (!provider.leaseAgain(this, log, committed.key())) {
      checkPhase(operation);
    }
    rows = new HandedRows(this);
    try {
      return read.get();
    } finally {
      leave();
    }
  }

  private FamilyView reading(String operation, String family) {
    if (!hasCommitted() || !canRead()) { // what was committed can be read while the task goes on
      checkPhase(operation);
    }
    try {
      return families.get(operation, family);
    } catch (OutOfMemoryError error) { // for the index of a family that is new to the state
      throw outOfMemory("read", error);
    }
  }

  private FamilyView writing(String operation, String family) {
    checkPhase(operation);
    require(!readOnly, "the store was opened for reading");
    try {
      return families.getOrCreate(operation, family);
    } catch (OutOfMemoryError error) {
      throw outOfMemory("change", error);
    }
  }

  private FamilyView lists(String operation, String family) {
    FamilyView view = reading(operation, family);
    requireLists(view, operation);
    return view;
  }

  // ---- the end

  @Override
  public synchronized long commit() {
    try {
      checkPhase("commit");
      require(!readOnly, "the store was opened for reading");
      busy = true;
      committed = provider.commit();
      end(Phase.COMMITTED);
      return version + 1;
    } catch (OutOfMemoryError error) {
      throw Sneaky.sneak(QueryExecutionErrors.failedToCommitStateFileError(toString(), outOfMemory("change", error)));
    } catch (Exception error) {
      throw Sneaky.sneak(QueryExecutionErrors.failedToCommitStateFileError(toString(), error));
    } finally {
      busy = false;
    }
  }

  /** Undo what was written. After a commit, and a second time, nothing happens. */
  @Override
  public synchronized void abort() {
    if (phase == Phase.UPDATING) {
      if (provider.isLeasedBy(this)) { // else it failed to open, and what could be undone is somebody else's
        provider.undo();
      }
      end(Phase.ABORTED);
    }
  }

  /** Give a store that was read from back. A second time, nothing happens. */
  @Override
  public synchronized void release() {
    if (phase == Phase.UPDATING) {
      require(readOnly, "a store that was opened for writing is committed or aborted, not released");
      end(Phase.RELEASED);
    }
  }

  private void end(Phase ended) {
    phase = ended;
    if (!inTask) {
      if (ended == Phase.COMMITTED) {
        metrics();
      }
      leave();
    }
  }

  @Override
  public boolean isDone() {
    return phase != Phase.UPDATING;
  }

  @Override
  public boolean isBusy() {
    return busy;
  }

  @Override
  public boolean hasCommitted() {
    return phase == Phase.COMMITTED;
  }

  /** The numbers as they are, or as they were when the store was done with the state. */
  @Override
  public synchronized StateStoreMetrics metrics() {
    if (lastMetrics == null || canRead()) {
      lastMetrics = provider.metrics(this, committed, forcedSnapshot);
    }
    return lastMetrics;
  }

  @Override
  public synchronized StateStoreCheckpointInfo getStateStoreCheckpointInfo() {
    if (committed == null) {
      throw StateStoreErrors.stateStoreOperationOutOfOrder("Cannot get checkpointInfo without committing the store");
    }
    return provider.checkpointInfo(committed.key());
  }

  @Override
  public String toString() {
    return "SafeKeeperStateStore[stateStoreId=" + id() + ", version=" + version + "]";
  }

  private void checkPhase(String operation) {
    if (phase != Phase.UPDATING) {
      throw StateStoreErrors.stateStoreOperationOutOfOrder("Cannot " + operation + " after " + phase);
    }
  }

  private static void requireLists(FamilyView view, String operation) {
    require(view.spec().multiple(), operation + " needs a column family with several values for a key");
  }

  private static void requireValue(UnsafeRow value, String operation) {
    if (value == null) {
      throw new IllegalArgumentException("Cannot " + operation + " a null value");
    }
  }

  private static void require(boolean condition, String otherwise) {
    if (!condition) {
      throw new IllegalStateException(otherwise);
    }
  }
}
