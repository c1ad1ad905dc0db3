package io.safekeeper.spark.state;

import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/**
 * Where the newest record of each key is: a hash table with open addressing, 8 bytes a slot, at most two thirds full.
 *
 * <p>A slot holds the key's hash in its upper and the record's address in its lower half; 0 is empty. The key itself is
 * only in the record. A deleted key's successors move up, so there are no tombstones here.
 *
 * <p>A {@link Snapshot} shares the table; the first change while one is open copies it.
 */
final class HashIndex {
  private static final int SEED = 42;
  private static final int SMALLEST = 64;

  /** How many keys can be prefetched at once: about what a processor waits for at the same time, a few times over. */
  static final int MOST_PREFETCHED = 32;

  private final Pages pages;
  private long[] slots = new long[SMALLEST];
  private int size;
  private int snapshots; // open ones that share `slots`
  private final long[] prefetched = new long[MOST_PREFETCHED];

  HashIndex(Pages pages) {
    this.pages = pages;
  }

  static int hash(Object base, long offset, int length) {
    return Murmur3_x86_32.hashUnsafeWords(base, offset, length, SEED);
  }

  int size() {
    return size;
  }

  /** The memory that the table occupies. */
  long bytes() {
    return 8L * slots.length;
  }

  /** The address of the newest record with this key, 0 if there is none. */
  int find(int hash, Object base, long offset, int length) {
    return (int) slots[slotOf(hash, base, offset, length)];
  }

  /** Make room for so many keys at once, as a load knows them. That there is enough already is not an error. */
  void expect(long keys) {
    int length = slots.length;
    while (keys >= most(length)) {
      length = Math.multiplyExact(length, 2);
    }
    if (length > slots.length) {
      resize(length);
    }
  }

  /** Make room for so many more keys. After this the next changes need no memory and cannot fail half-way. */
  void reserve(int keys) {
    if (size + keys > most(slots.length)) {
      resize(Math.multiplyExact(slots.length, 2));
    } else if (snapshots > 0) {
      slots = slots.clone();
      snapshots = 0;
    }
  }

  /**
   * Fetch what {@link #put} will look at for keys with these hashes into the processor's cache. Each put waits for
   * memory, for a slot and then for a record; here they all wait at the same time.
   */
  void prefetch(int[] hashes, int count) {
    int mask = slots.length - 1;
    int seen = 0;
    for (int i = 0; i < count; i++) {
      prefetched[i] = slots[hashes[i] & mask];
    }
    for (int i = 0; i < count; i++) {
      if (prefetched[i] != 0 && (int) (prefetched[i] >>> 32) == hashes[i]) {
        int address = (int) prefetched[i];
        seen += pages.page(address)[Pages.offset(address)];
      }
    }
    prefetched[0] = seen; // or the loops would be left out
  }

  /** Let the key's newest record be the one at {@code address}; return the address of the one before, or 0. */
  int put(int hash, Object base, long offset, int length, int address) {
    reserve(1);
    int slot = slotOf(hash, base, offset, length);
    int before = (int) slots[slot];
    slots[slot] = entry(hash, address);
    size += before == 0 ? 1 : 0;
    return before;
  }

  /** Whether the record at {@code address}, whose key has this hash, is its key's newest. Looks at no record. */
  boolean holds(int hash, int address) {
    return (int) slots[slotOf(hash, address)] != 0;
  }

  /**
   * Let the record at {@code to} be the newest instead of the one at {@code from}, which is it and has the same
   * key.
   */
  void replace(int hash, int from, int to) {
    reserve(1);
    slots[slotOf(hash, from)] = entry(hash, to);
  }

  /** Forget the key; return the address of its newest record, or 0 if there was none. */
  int remove(int hash, Object base, long offset, int length) {
    reserve(1);
    int slot = slotOf(hash, base, offset, length);
    int before = (int) slots[slot];
    if (before != 0) {
      size--;
      closeGap(slot);
    }
    return before;
  }

  /** The index as it is now. */
  Snapshot snapshot() {
    snapshots++;
    return new Snapshot();
  }

  private int slotOf(int hash, Object base, long offset, int length) {
    long[] table = slots;
    int mask = table.length - 1;
    int slot = hash & mask;
    while (table[slot] != 0 && !((int) (table[slot] >>> 32) == hash && isAt((int) table[slot], base, offset, length))) {
      slot = slot + 1 & mask;
    }
    return slot;
  }

  private int slotOf(int hash, int address) {
    long wanted = entry(hash, address);
    int mask = slots.length - 1;
    int slot = hash & mask;
    while (slots[slot] != 0 && slots[slot] != wanted) {
      slot = slot + 1 & mask;
    }
    return slot;
  }

  private static long entry(int hash, int address) {
    return (long) hash << 32 | address & 0xffffffffL;
  }

  private boolean isAt(int address, Object base, long offset, int length) {
    byte[] page = pages.page(address);
    int record = Pages.offset(address);
    return Record.keyLength(page, record) == length
        && sameWords(page, Record.at(Record.keyOffset(page, record)), base, offset, length);
  }

  private static boolean sameWords(Object left, long leftAt, Object right, long rightAt, int length) {
    for (int i = 0; i < length; i += 8) {
      if (Platform.getLong(left, leftAt + i) != Platform.getLong(right, rightAt + i)) {
        return false;
      }
    }
    return true;
  }

  private void closeGap(int gap) {
    int mask = slots.length - 1;
    for (int slot = gap + 1 & mask; slots[slot] != 0; slot = slot + 1 & mask) {
      int home = (int) (slots[slot] >>> 32) & mask;
      if ((slot - home & mask) >= (slot - gap & mask)) {
        slots[gap] = slots[slot];
        gap = slot;
      }
    }
    slots[gap] = 0;
  }

  /** How many keys a table of that length holds. */
  private static int most(int length) {
    return length / 3 * 2;
  }

  private void resize(int length) {
    long[] old = slots;
    slots = new long[length];
    snapshots = 0; // they keep the old table
    int mask = slots.length - 1;
    for (long entry : old) {
      if (entry != 0) {
        int slot = (int) (entry >>> 32) & mask;
        while (slots[slot] != 0) {
          slot = slot + 1 & mask;
        }
        slots[slot] = entry;
      }
    }
  }

  /** The addresses of all keys' newest records at one moment, in no order. */
  final class Snapshot implements Addresses {
    private final long[] table = slots;
    private int slot;
    private boolean open = true;

    @Override
    public int next() {
      while (slot < table.length) {
        int address = (int) table[slot++];
        if (address != 0) {
          return address;
        }
      }
      close();
      return 0;
    }

    @Override
    public void close() {
      if (open && table == slots) {
        snapshots--;
      }
      open = false;
    }
  }
}
