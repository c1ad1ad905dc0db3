package io.safekeeper.spark.state;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.unsafe.Platform;

/**
 * The state of one partition: a map from keys to values that is a log of its changes.
 *
 * <p>A put appends the key and the value, a remove appends the key as a tombstone; an index per column family knows the
 * newest record of each key. What was appended since the last commit is the next commit, byte for byte.
 *
 * <p>The index learns of puts a few at a time, at the latest before anything else is done with the log.
 *
 * <p>Each change also notes which record was its key's newest before. Reading these notes backwards leads to any of the
 * last few versions: that is how an abort, a retry and a sibling of a commit are reached.
 *
 * <p>For one thread at a time; whoever holds the provider's lease.
 */
public final class StateLog {
  /** The usual size of a page. */
  public static final int PAGE_BYTES = Pages.MAX_PAGE_BYTES;

  private final StateMemory memory;
  private final Pages pages;
  private final Map<Integer, Family> families = new TreeMap<>();
  private final Family defaultFamily;
  private final Extent extent;
  private final int savepointsKept;
  private final ArrayDeque<Savepoint> savepoints = new ArrayDeque<>(); // oldest first
  private Map<String, Integer> names; // from the catalog, null when it must be read again
  private final UndoList undo; // the record's address above, the one that was newest before it below
  private long appended;
  private long liveBytes;
  private long commitPosition; // the end of the last commit
  private long commitAppended;
  private boolean changing; // a change has begun and has not come to its end
  private Family unlinkedFamily; // the family of puts that its index does not know of yet, and what they appended
  private final int[] unlinked = new int[HashIndex.MOST_PREFETCHED];
  private final int[] unlinkedHashes = new int[HashIndex.MOST_PREFETCHED];
  private int unlinkedCount;

  /** An empty log that can later go back over so many versions; see {@link Extent} for the weight. */
  public StateLog(StateMemory memory, int savepointsKept, int leastWeight) {
    this(memory, savepointsKept, leastWeight, Pages.MAX_PAGE_BYTES);
  }

  StateLog(StateMemory memory, int savepointsKept, int leastWeight, int pageBytes) {
    this.memory = memory;
    this.savepointsKept = Math.max(2, savepointsKept);
    this.pages = new Pages(memory, pageBytes);
    this.undo = new UndoList(memory);
    try {
      this.defaultFamily = family(Family.DEFAULT);
      family(Family.CATALOG); // at once: asking for names takes no memory then
    } catch (OutOfMemoryError error) {
      close();
      throw error;
    }
    this.extent = new Extent(leastWeight, pages.position());
    this.commitPosition = pages.position();
  }

  public Pages pages() {
    return pages;
  }

  public Family defaultFamily() {
    return defaultFamily;
  }

  /** How many keys there are, in all families and the catalog. */
  public long size() {
    linkPuts();
    return families.values().stream().mapToLong(family -> family.index.size()).sum();
  }

  /** How many keys a family has. */
  public long size(Family family) {
    linkPuts();
    return family.index.size();
  }

  /** What stays in memory: the indexes, small pages and what undo needs; the ordered indexes are not counted. */
  public long memoryBytes() {
    long bytes = pages.memoryBytes() + undo.bytes();
    for (Family family : families.values()) {
      bytes += family.index.bytes();
    }
    return bytes;
  }

  /** What lies in mapped files: the records. */
  public long diskBytes() {
    return pages.diskBytes();
  }

  /**
   * Free what was given up. Nobody may read any more what he got of this log until now, neither rows nor iterators nor
   * tables of pages; an iterator that is read on all the same says so.
   */
  public void freeRetired() {
    families.values().forEach(family -> family.index.endSnapshots());
    pages.freeRetired();
  }

  /** Forget the order of keys; the log will not be used any more. Takes no memory. */
  public void dropOrder() {
    families.values().forEach(Family::dropOrder);
  }

  /** Free everything, under the same condition. The log cannot be used any more. */
  public void close() {
    families.values().forEach(family -> family.index.close());
    undo.close();
    pages.close();
  }

  /** How many keys there are, give or take the last puts: changes nothing, for a log that a change failed in. */
  public long roughSize() {
    long size = unlinkedCount;
    for (Family family : families.values()) {
      size += family.index.size();
    }
    return size;
  }

  public long liveBytes() {
    linkPuts();
    return liveBytes;
  }

  /** What a load of the last commit has to replay. */
  public long extentBytes() {
    return extent.weight();
  }

  /** How many bytes were appended since the last commit. */
  public long uncommittedBytes() {
    return appended - commitAppended;
  }

  /** Append a value for a key. The last {@code added} bytes of the value are new, if it is a list that was added to. */
  public void put(
      Family family, Object key, long keyAt, int keyLength, Object value, long valueAt, int valueLength, int added) {
    int hash = HashIndex.hash(key, keyAt, keyLength);
    beginPut(family, hash);
    int address = append(family, key, keyAt, keyLength, value, valueAt, valueLength, 0, added);
    endPut(address, hash);
  }

  private void beginPut(Family family, int hash) {
    if (family != unlinkedFamily || family.ordered() != null || unlinkedCount == unlinked.length) {
      linkPuts();
      unlinkedFamily = family;
    }
    begin(family, hash);
  }

  /** The index is to know of the record at this address, whose key has that hash, the next time that somebody asks. */
  private void endPut(int address, int hash) {
    if (unlinkedFamily.ordered() != null) { // scans go by that; and it may lack memory, which is an end of the put
      note(address, unlinkedFamily.link(address, hash, address));
      return;
    }
    unlinked[unlinkedCount] = address;
    unlinkedHashes[unlinkedCount++] = hash;
    changing = false;
  }

  /** Let the index know of all puts. It has room for them: this cannot fail. */
  private void linkPuts() {
    if (unlinkedCount > 0) {
      unlinkedFamily.index.prefetch(unlinkedHashes, unlinkedCount);
      for (int i = 0; i < unlinkedCount; i++) {
        note(unlinked[i], unlinkedFamily.link(unlinked[i], unlinkedHashes[i], unlinked[i]));
      }
      unlinkedCount = 0;
    }
  }

  /** Append a tombstone for a key, if the key is there; return whether it was. */
  public boolean remove(Family family, Object key, long keyAt, int keyLength) {
    linkPuts();
    int hash = HashIndex.hash(key, keyAt, keyLength);
    if (family.index.find(hash, key, keyAt, keyLength) == 0) {
      return false;
    }
    begin(family, hash);
    int address = append(family, key, keyAt, keyLength, null, 0, 0, Record.TOMBSTONE, 0);
    note(address, family.link(address, hash, 0));
    return true;
  }

  /** The address of a key's newest record, 0 if there is none. */
  public int find(Family family, Object key, long keyAt, int keyLength) {
    linkPuts();
    return family.index.find(HashIndex.hash(key, keyAt, keyLength), key, keyAt, keyLength);
  }

  /** All keys of a family as they are now: in order if the family is scanned. */
  public Addresses all(Family family) {
    linkPuts();
    return family.ordered() == null ? family.index.snapshot() : family.ordered().all();
  }

  // ---- column families

  /** The family of that name, null if it was never created or was removed. */
  public Family family(String name) {
    Integer id = names().get(name);
    return id == null ? null : family(id.intValue());
  }

  /** Create a family unless it exists; the name is part of the next commit. */
  public Family createFamily(String name) {
    Family existing = family(name);
    if (existing != null) {
      return existing;
    }
    int id = 1;
    while (families.containsKey(id)) {
      id++;
    }
    if (id == Family.CATALOG) {
      throw new IllegalStateException("there are no more than 65534 column families");
    }
    byte[] key = catalogKey(name);
    byte[] value = new byte[8];
    Platform.putLong(value, Record.at(0), id);
    put(family(Family.CATALOG), key, Record.at(0), key.length, value, Record.at(0), value.length, 0);
    names = null;
    return family(id);
  }

  /** Remove a family with all its keys; return whether it existed. */
  public boolean removeFamily(String name) {
    Family family = family(name);
    if (family == null) {
      return false;
    }
    long[] table = pages.table();
    try (Addresses all = all(family)) {
      for (int address = all.next(); address != 0; address = all.next()) {
        long record = Pages.at(table, address);
        remove(family, null, Record.keyAt(null, record), Record.keyLength(null, record));
      }
    }
    byte[] key = catalogKey(name);
    remove(family(Family.CATALOG), key, Record.at(0), key.length);
    names = null;
    return true;
  }

  /** The names of all families but the default one, with their ids. */
  public Map<String, Integer> names() {
    if (names == null) {
      Map<String, Integer> found = new HashMap<>();
      Family catalog = family(Family.CATALOG);
      try (Addresses all = all(catalog)) {
        for (int address = all.next(); address != 0; address = all.next()) {
          long record = pages.at(address);
          long key = Record.keyAt(null, record);
          byte[] text = new byte[(int) Platform.getLong(null, key)];
          Platform.copyMemory(null, key + 8, text, Record.at(0), text.length);
          String name = new String(text, StandardCharsets.UTF_8);
          found.put(name, (int) Platform.getLong(null, Record.valueAt(null, record)));
        }
      }
      names = found;
    }
    return names;
  }

  private static byte[] catalogKey(String name) {
    byte[] text = name.getBytes(StandardCharsets.UTF_8);
    byte[] key = new byte[8 + (text.length + 7) / 8 * 8];
    Platform.putLong(key, Record.at(0), text.length);
    System.arraycopy(text, 0, key, 8, text.length);
    return key;
  }

  private Family family(int id) {
    return id == Family.DEFAULT && defaultFamily != null
        ? defaultFamily
        : families.computeIfAbsent(id, number -> new Family(number, memory, pages));
  }

  // ---- versions

  /** The commit that the log was last at. */
  public Savepoint current() {
    return savepoints.getLast();
  }

  /** The oldest version whose records a load of {@code newest} reads, if that is committed now. */
  public long oldestVersion(long newest) {
    return extent.oldestVersion(newest);
  }

  /** How many bytes of that oldest version are needed no more. */
  public long startOffset() {
    return extent.startOffset();
  }

  /** Where the next record goes at the earliest. */
  public long position() {
    return pages.position();
  }

  /** Where the pages end that are full, and that nothing will be appended to. */
  public long fullPagesEnd() {
    return pages.fullPagesEnd();
  }

  /** A walk over the records from one position to another. */
  public Pages.Walk walk(long from, long to) {
    return pages.walk(from, to);
  }

  /** What was appended since the last commit is the commit of that version. */
  public void endCommit(long version) {
    extent.add(version, commitPosition, commitAppended, appended - commitAppended);
    commitPosition = pages.position();
    commitAppended = appended;
  }

  /** Let the log be able to come back to where it is now, at the end of a commit. */
  public void addSavepoint(String id, long version) {
    linkPuts();
    savepoints.addLast(new Savepoint(
        id, version, pages.position(), undo.end(), appended, liveBytes, extent.start(), extent.startAppended()));
    if (savepoints.size() > savepointsKept) {
      savepoints.removeFirst();
      forgetBefore(savepoints.getFirst());
    }
  }

  /** Whether the log can go back to that commit. */
  public boolean canUndoTo(long version, String id) {
    return savepoints.stream().anyMatch(past -> past.id().equals(id) && past.version() == version);
  }

  /** Go back to how the log was after the commit of that id. */
  public void undoTo(String id) {
    while (!current().id().equals(id)) {
      savepoints.removeLast();
    }
    undoUncommitted();
  }

  /** Go back to the last commit. */
  public void undoUncommitted() {
    unlinkedCount = 0; // they came after the last commit, and nothing knows of them
    Savepoint target = current();
    while (undo.end() > target.undo()) {
      long entry = undo.take();
      int address = (int) (entry >>> 32);
      int before = (int) entry;
      Family family = family(Record.family(null, pages.at(address)));
      int hash = family.hashOfKey(address);
      family.index.reserve(hash);
      family.link(address, hash, before);
      if (before != 0) {
        pages.setOutdated(before, false);
      }
    }
    pages.truncate(target.position());
    extent.undo(target);
    appended = target.appended();
    liveBytes = target.liveBytes();
    commitPosition = target.position();
    commitAppended = appended;
    names = null;
    changing = false;
  }

  /** Make room for so many keys in the default family, where most stores have all of them. */
  public void expect(long keys) {
    defaultFamily.index.expect(keys);
  }

  /** The oldest commit, which is replayed next into an empty log, begins with so many bytes that nothing needs. */
  public void passOver(long bytes) {
    appended += bytes;
    extent.advance(extent.start(), bytes);
  }

  /**
   * The commit that was replayed last names the oldest record that it needs, so many bytes into the commit of that
   * version: its writer's cleaner has moved what is before. Commits that are made now need no more than that one, or
   * they would name some that may have been deleted since.
   */
  public void advanceStart(long version, long offset) {
    long target = extent.appendedBefore(version, offset);
    Pages.Walk walk = pages.walk(extent.start(), pages.position());
    extent.advance(extent.start(), 0); // past commits without records
    while (extent.startAppended() < target && walk.next()) {
      extent.advance(walk.after(), Record.size(null, walk.at()));
    }
    if (extent.startAppended() > target) {
      throw new IllegalStateException("a commit names an oldest record that is none: " + offset + " bytes into version "
          + version);
    }
  }

  /** Apply records that were once committed, from {@code bytes[from]} to {@code bytes[to]}. */
  public void replay(byte[] bytes, int from, int to) {
    for (int offset = from; offset < to; ) {
      int size = Record.checkedSize(bytes, offset, to);
      long record = Record.at(offset);
      Family family = family(Record.family(bytes, record));
      int hash = HashIndex.hash(bytes, Record.keyAt(bytes, record), Record.keyLength(bytes, record));
      if (Record.isTombstone(bytes, record)) {
        linkPuts();
        begin(family, hash);
        int address = appendCopy(bytes, record, size);
        note(address, family.link(address, hash, 0));
      } else {
        beginPut(family, hash);
        int address = appendCopy(bytes, record, size);
        Record.clearOutdated(pages.at(address));
        endPut(address, hash);
      }
      offset += size;
    }
    names = null;
  }

  /**
   * Append the oldest records that are still some key's newest again, so that a load need not replay what is before
   * them.
   *
   * <p>Starts when a load would replay {@code most} times the size of the newest records, and appends at most
   * 1/({@code most} - 1) of what was appended since the last commit: then a load never replays more than
   * 2 {@code most} - 1 times their size. A tombstone that is the oldest record covers nothing any more and is passed.
   *
   * @return how many bytes were appended
   */
  public long clean(double most) {
    if (changing) {
      throw new IllegalStateException("a change failed half-way: the store can only be aborted");
    }
    linkPuts();
    long budget = (long) (extent.weigh(uncommittedBytes()) / (most - 1));
    long moved = 0;
    Savepoint last = current();
    Pages.Walk walk = pages.walk(extent.start(), last.position());
    while (moved < budget && extent.weight() + extent.weigh(uncommittedBytes()) > most * liveBytes) {
      if (!walk.next()) {
        extent.advanceToEnd(last.position(), last.appended());
        break;
      }
      int size = Record.size(null, walk.at());
      // Most are known to be outdated: only the others are worth a look at the index.
      if (!pages.isOutdated(walk.address()) && moveToEnd(walk, size)) {
        moved += size;
      }
      extent.advance(walk.after(), size);
    }
    return moved;
  }

  /** Append the record that the walk is at again, if it is its key's newest; return whether it was. */
  private boolean moveToEnd(Pages.Walk walk, int size) {
    if (Record.isTombstone(null, walk.at())) {
      return false;
    }
    int address = walk.address();
    Family family = family(Record.family(null, walk.at()));
    int hash = family.hashOfKey(address);
    if (!family.index.holds(hash, address)) {
      return false;
    }
    begin(family, hash);
    int copy = appendCopy(null, walk.at(), size);
    Record.markCleaned(pages.at(copy));
    family.relink(address, hash, copy);
    note(copy, address);
    return true;
  }

  private void forgetBefore(Savepoint oldest) {
    undo.dropBefore(oldest.undo());
    extent.forgetBefore(oldest.start());
    pages.releaseBefore(oldest.start());
  }

  private int appendCopy(Object base, long record, int size) {
    int address = pages.allocate(size);
    Platform.copyMemory(base, record, null, pages.at(address), size);
    appended += size;
    return address;
  }

  /** Before a change: get the memory that noting it takes, so that undo works when there is none for the rest. */
  private void begin(Family family, int hash) {
    changing = true;
    family.index.reserve(hash);
    undo.reserve(unlinkedCount + 1);
  }

  private int append(
      Family family,
      Object key,
      long keyAt,
      int keyLength,
      Object value,
      long valueAt,
      int valueLength,
      int flags,
      int added) {
    if (((keyLength | valueLength) & 7) != 0) {
      throw new IllegalArgumentException("a row is a multiple of 8 bytes long");
    }
    int size = Record.sizeOf(keyLength, valueLength, family.id != 0 || added != 0);
    int address = pages.allocate(size);
    long record = pages.at(address);
    long at = record + Record.writeHeader(record, keyLength, valueLength, flags, family.id, added);
    Platform.copyMemory(key, keyAt, null, at, keyLength);
    if (valueLength > 0) {
      Platform.copyMemory(value, valueAt, null, at + keyLength, valueLength);
    }
    appended += size;
    return address;
  }

  /** After a change: note that a record took another one's place as its key's newest. */
  private void note(int address, int before) {
    long record = pages.at(address);
    if (!Record.isTombstone(null, record)) {
      liveBytes += Record.size(null, record);
    }
    if (before != 0) {
      liveBytes -= Record.size(null, pages.at(before));
      pages.setOutdated(before, true);
    }
    if (!savepoints.isEmpty()) { // else it is a load, and there is nothing to go back to
      undo.add((long) address << 32 | before & 0xffffffffL);
    }
    changing = false;
  }
}
