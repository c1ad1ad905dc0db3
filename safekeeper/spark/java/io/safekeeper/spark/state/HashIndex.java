package io.safekeeper.spark.state;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/**
 * The newest record of each key, outside the heap: extendible hashing with open addressing.
 *
 * <p>The directory's entry for the highest bits of a hash is a segment, a table of slots. A slot is a long, the key's
 * hash in its upper half and the record's address in its lower half; 0 is empty. The key itself is only in the record. A
 * deleted key's successors move up, so there are no tombstones here. A segment that is full is doubled while it is
 * small, and then split in two, so the index grows by {@value #LARGEST} slots at a time and never needs a second copy of
 * itself.
 *
 * <p>A {@link Snapshot} shares the segments; the first change of a segment while one is open copies it.
 */
final class HashIndex {
  private static final int SEED = 42;
  private static final int SMALLEST = 256;
  private static final int LARGEST = 1 << 17;
  private static final int MOST_DEPTH = 15; // then the other 17 bits of a hash are its home in a segment

  /**
   * How many keys can be prefetched at once: about what a processor waits for at the same time, a few times over. The
   * smallest segment, when it counts as full, still has room for so many.
   */
  static final int MOST_PREFETCHED = 32;

  private final StateMemory memory;
  private final Pages pages;
  private IndexSegment[] directory;
  private int shift = 32; // how far a hash is shifted to be an index of the directory
  private int size;
  private int segments = 1;
  private long bytes;
  private int snapshots; // open ones
  private int generation; // of snapshots: older ones are over
  private long clock; // counts snapshots and segments
  private long lastSnapshot;
  private long[] retired = new long[4]; // tables that open snapshots may still read, each followed by its length
  private int retiredEnd;
  private final long[] prefetched = new long[MOST_PREFETCHED];

  /** A part of the table: where it is, its length less 1, and how many of a hash's highest bits its keys share. */
  private static final class IndexSegment {
    private long address;
    private int mask;
    private int depth;
    private int size;
    private long since; // when its memory was allocated

    long slot(int slot) {
      return Platform.getLong(null, address + 8L * slot);
    }

    void set(int slot, long entry) {
      Platform.putLong(null, address + 8L * slot, entry);
    }

    boolean isFull() {
      return size >= most(mask + 1);
    }
  }

  HashIndex(StateMemory memory, Pages pages) {
    this.memory = memory;
    this.pages = pages;
    directory = new IndexSegment[] {newSegment(SMALLEST, 0)};
  }

  static int hash(Object base, long offset, int length) {
    return Murmur3_x86_32.hashUnsafeWords(base, offset, length, SEED);
  }

  int size() {
    return size;
  }

  /** The memory that the segments occupy. */
  long bytes() {
    return bytes;
  }

  /** The address of the newest record with this key, 0 if there is none. */
  int find(int hash, Object base, long offset, int length) {
    IndexSegment segment = segmentOf(hash);
    return (int) segment.slot(slotOf(segment, hash, base, offset, length));
  }

  /** Make room for so many keys at once, as a load knows them; only a small part of it if there are some already. */
  void expect(long keys) {
    if (size > 0 || segments > 1) {
      return;
    }
    int length = SMALLEST;
    while (length < LARGEST && keys >= most(length)) {
      length *= 2;
    }
    int depth = 0;
    while (depth < MOST_DEPTH && keys >> depth >= most(length) / 10 * 9) {
      depth++;
    }
    if (length == SMALLEST) {
      return;
    }
    IndexSegment[] larger = new IndexSegment[1 << depth];
    int made = 0;
    try {
      for (; made < larger.length; made++) {
        larger[made] = newSegment(length, depth);
      }
    } catch (OutOfMemoryError error) {
      while (made > 0) {
        drop(larger[--made]);
      }
      throw error;
    }
    drop(directory[0]);
    directory = larger;
    segments = larger.length;
    shift = 32 - depth;
  }

  /** Before a change to a key with this hash: make room, so that the change needs no memory and cannot fail half-way. */
  void reserve(int hash) {
    IndexSegment segment = segmentOf(hash);
    while (segment.isFull()) {
      if (segment.mask + 1 < LARGEST || segment.depth == MOST_DEPTH) {
        resize(segment, 2 * (segment.mask + 1));
      } else {
        split(segment);
        segment = segmentOf(hash);
      }
    }
    if (snapshots > 0 && segment.since < lastSnapshot) {
      resize(segment, segment.mask + 1);
    }
  }

  /**
   * Fetch what {@link #put} will look at for keys with these hashes into the processor's cache. Each put waits for
   * memory, for a slot and then for a record; here they all wait at the same time.
   */
  void prefetch(int[] hashes, int count) {
    int seen = 0;
    for (int i = 0; i < count; i++) {
      IndexSegment segment = segmentOf(hashes[i]);
      prefetched[i] = segment.slot(hashes[i] & segment.mask);
    }
    for (int i = 0; i < count; i++) {
      if (prefetched[i] != 0 && (int) (prefetched[i] >>> 32) == hashes[i]) {
        seen += Platform.getInt(null, pages.at((int) prefetched[i]));
      }
    }
    prefetched[0] = seen; // or the loops would be left out
  }

  /** Let the key's newest record be the one at {@code address}; return the one before, or 0. There is room for it. */
  int put(int hash, Object base, long offset, int length, int address) {
    IndexSegment segment = segmentOf(hash);
    int slot = slotOf(segment, hash, base, offset, length);
    int before = (int) segment.slot(slot);
    segment.set(slot, entry(hash, address));
    if (before == 0) {
      size++;
      segment.size++;
    }
    return before;
  }

  /** Whether the record at {@code address}, whose key has this hash, is its key's newest. Looks at no record. */
  boolean holds(int hash, int address) {
    IndexSegment segment = segmentOf(hash);
    return segment.slot(slotOf(segment, hash, address)) != 0;
  }

  /**
   * Let the record at {@code to} be the newest instead of the one at {@code from}, which is it and has the same
   * key.
   */
  void replace(int hash, int from, int to) {
    IndexSegment segment = segmentOf(hash);
    segment.set(slotOf(segment, hash, from), entry(hash, to));
  }

  /** Forget the key; return the address of its newest record, or 0 if there was none. */
  int remove(int hash, Object base, long offset, int length) {
    IndexSegment segment = segmentOf(hash);
    int slot = slotOf(segment, hash, base, offset, length);
    int before = (int) segment.slot(slot);
    if (before != 0) {
      size--;
      segment.size--;
      closeGap(segment, slot);
    }
    return before;
  }

  /** The index as it is now. */
  Snapshot snapshot() {
    Snapshot snapshot = new Snapshot();
    snapshots++;
    lastSnapshot = ++clock;
    return snapshot;
  }

  /** End all snapshots, whoever still has one: reading on in one of them is an error. */
  void endSnapshots() {
    generation++;
    snapshots = 0;
    freeRetired();
  }

  void close() {
    endSnapshots();
    for (IndexSegment segment : distinct()) {
      drop(segment);
    }
    directory = new IndexSegment[0];
  }

  private IndexSegment segmentOf(int hash) {
    return directory[(int) ((hash & 0xffffffffL) >>> shift)];
  }

  private int slotOf(IndexSegment segment, int hash, Object base, long offset, int length) {
    long table = segment.address;
    int mask = segment.mask;
    int slot = hash & mask;
    while (true) {
      long entry = Platform.getLong(null, table + 8L * slot);
      if (entry == 0 || (int) (entry >>> 32) == hash && isAt((int) entry, base, offset, length)) {
        return slot;
      }
      slot = slot + 1 & mask;
    }
  }

  private static int slotOf(IndexSegment segment, int hash, int address) {
    long wanted = entry(hash, address);
    int slot = hash & segment.mask;
    for (long found = segment.slot(slot); found != 0 && found != wanted; found = segment.slot(slot)) {
      slot = slot + 1 & segment.mask;
    }
    return slot;
  }

  private static long entry(int hash, int address) {
    return (long) hash << 32 | address & 0xffffffffL;
  }

  private boolean isAt(int address, Object base, long offset, int length) {
    long record = pages.at(address);
    return Record.keyLength(null, record) == length
        && sameWords(Record.keyAt(null, record), base, offset, length);
  }

  private static boolean sameWords(long left, Object right, long rightAt, int length) {
    for (int i = 0; i < length; i += 8) {
      if (Platform.getLong(null, left + i) != Platform.getLong(right, rightAt + i)) {
        return false;
      }
    }
    return true;
  }

  private static void closeGap(IndexSegment segment, int gap) {
    int mask = segment.mask;
    int slot = gap + 1 & mask;
    for (long entry = segment.slot(slot); entry != 0; entry = segment.slot(slot)) {
      int home = (int) (entry >>> 32) & mask;
      if ((slot - home & mask) >= (slot - gap & mask)) {
        segment.set(gap, entry);
        gap = slot;
      }
      slot = slot + 1 & mask;
    }
    segment.set(gap, 0);
  }

  /** How many keys a table of that length holds. */
  private static int most(int length) {
    return length / 3 * 2;
  }

  // ---- segments

  private IndexSegment newSegment(int length, int depth) {
    IndexSegment segment = new IndexSegment();
    segment.address = memory.allocate(8L * length);
    segment.mask = length - 1;
    segment.depth = depth;
    segment.since = ++clock;
    bytes += 8L * length;
    return segment;
  }

  private void drop(IndexSegment segment) {
    bytes -= 8L * (segment.mask + 1);
    memory.free(segment.address, 8L * (segment.mask + 1));
  }

  /** The table of a segment is needed no more, but by snapshots that were opened since it was made. */
  private void retire(IndexSegment segment) {
    if (snapshots == 0 || segment.since > lastSnapshot) {
      drop(segment);
      return;
    }
    if (retiredEnd == retired.length) {
      retired = Arrays.copyOf(retired, 2 * retiredEnd);
    }
    retired[retiredEnd++] = segment.address;
    retired[retiredEnd++] = segment.mask + 1;
  }

  private void freeRetired() {
    while (retiredEnd > 0) {
      retiredEnd -= 2;
      bytes -= 8 * retired[retiredEnd + 1];
      memory.free(retired[retiredEnd], 8 * retired[retiredEnd + 1]);
    }
  }

  private void resize(IndexSegment segment, int length) {
    IndexSegment larger = newSegment(length, segment.depth);
    moveAll(segment, larger, larger);
    retire(segment);
    segment.address = larger.address;
    segment.mask = larger.mask;
    segment.since = larger.since;
  }

  private void split(IndexSegment segment) {
    if (segment.depth == 32 - shift) {
      IndexSegment[] larger = new IndexSegment[2 * directory.length];
      for (int i = 0; i < larger.length; i++) {
        larger[i] = directory[i / 2];
      }
      directory = larger;
      shift--;
    }
    int length = segment.mask + 1;
    IndexSegment low = newSegment(length, segment.depth + 1);
    IndexSegment high;
    try {
      high = newSegment(length, segment.depth + 1);
    } catch (OutOfMemoryError error) {
      drop(low);
      throw error;
    }
    moveAll(segment, low, high);
    for (int i = 0; i < directory.length; i++) {
      if (directory[i] == segment) {
        directory[i] = (i >>> 32 - shift - low.depth & 1) == 0 ? low : high;
      }
    }
    segments++;
    retire(segment);
  }

  /** Copy the entries to one of two segments, by the first bit that theirs do not share; or all to the same one. */
  private static void moveAll(IndexSegment from, IndexSegment low, IndexSegment high) {
    int bit = 31 - from.depth;
    for (int i = 0; i <= from.mask; i++) {
      long entry = from.slot(i);
      if (entry != 0) {
        int hash = (int) (entry >>> 32);
        IndexSegment to = (hash >>> bit & 1) == 0 ? low : high;
        int slot = hash & to.mask;
        while (to.slot(slot) != 0) {
          slot = slot + 1 & to.mask;
        }
        to.set(slot, entry);
        to.size++;
      }
    }
  }

  private List<IndexSegment> distinct() {
    List<IndexSegment> found = new ArrayList<>(segments);
    for (int i = 0; i < directory.length; i++) {
      if (i == 0 || directory[i] != directory[i - 1]) {
        found.add(directory[i]);
      }
    }
    return found;
  }

  /** The addresses of all keys' newest records at one moment, in no order. */
  final class Snapshot implements Addresses {
    private final int madeIn = generation;
    private final long[] tables = distinct().stream().mapToLong(segment -> segment.address).toArray();
    private final int[] lengths = distinct().stream().mapToInt(segment -> segment.mask + 1).toArray();
    private int table;
    private int slot;
    private boolean open = true;

    @Override
    public int next() {
      if (!open) {
        return 0;
      }
      if (madeIn != generation) {
        throw new IllegalStateException("the store is closed: what it showed cannot be read any more");
      }
      for (; table < tables.length; table++, slot = 0) {
        while (slot < lengths[table]) {
          int address = (int) Platform.getLong(null, tables[table] + 8L * slot++);
          if (address != 0) {
            return address;
          }
        }
      }
      close();
      return 0;
    }

    @Override
    public void close() {
      if (open && madeIn == generation) {
        snapshots--;
        if (snapshots == 0) {
          freeRetired();
        }
      }
      open = false;
    }
  }
}
