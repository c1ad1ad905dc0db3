package io.safekeeper.spark.state;

import java.util.Arrays;
import org.apache.spark.unsafe.Platform;

/**
 * The memory of a state log: pages of bytes that are only ever appended to, outside the heap.
 *
 * <p>A record's <em>address</em> is an int, the page's slot and the place in the page in units of 8 bytes; 0 is no
 * address. A <em>position</em> is a long that says how far the log had come, and grows for ever; slots are used
 * again. A record never spans two pages; one that is larger than a page gets a page of its own size.
 *
 * <p>Bytes once written are never changed: what is cut off is copied away first, that a record is outdated is noted
 * beside the page, and the table of pages is replaced, not edited, when pages go. Whoever keeps a table
 * ({@link #table}) keeps reading what was there, until {@link #freeRetired}: pages that are given up are only
 * retired, since rows and iterators may point to them, and freed when the log's owner knows of none.
 */
public final class Pages {
  private static final int PAGE_SHIFT = 19;

  /** The largest size of a page, and the usual one. */
  static final int MAX_PAGE_BYTES = 1 << PAGE_SHIFT;

  private static final int UNIT_SHIFT = 3;
  private static final int SLOT_SHIFT = PAGE_SHIFT - UNIT_SHIFT;
  private static final int UNIT_MASK = (1 << SLOT_SHIFT) - 1;
  private static final int MAX_SLOTS = 1 << (32 - SLOT_SHIFT);
  private static final int POSITION_SHIFT = 32;
  private static final int FIRST_PAGE_BYTES = 16 << 10;
  private static final int START = 8; // so that no record has the address 0

  private final StateMemory memory;
  private final int pageBytes;
  private long[] table = new long[4]; // where the pages are, by their slot; 0 for none
  private long[] marks = new long[4]; // by slot: a bit for each unit of the page, set for an outdated record there
  private int[] capacities = new int[4]; // by slot
  private int[] slots = new int[4]; // the log's pages in order, by their slot; page number n is slots[n - first]
  private int[] ends = new int[4]; // by page like slots: where the page's records end
  private long first; // the number of the oldest page that is kept
  private int count;
  private int unusedSlot; // slots from here on were never used
  private int[] freeSlots = new int[4];
  private int free;
  private long[] retired = new long[4]; // pages, each followed by its capacity
  private int retiredEnd;
  private long memoryBytes;
  private long diskBytes;

  /** Room for a first, small page; it grows up to {@code pageBytes}, and so large are all that follow. */
  Pages(StateMemory memory, int pageBytes) {
    this.memory = memory;
    this.pageBytes = pageBytes;
    addPage(Math.min(FIRST_PAGE_BYTES, pageBytes));
  }

  /** Where a record is in memory. */
  public static long at(long[] table, int address) {
    return table[address >>> SLOT_SHIFT] + ((address & UNIT_MASK) << UNIT_SHIFT);
  }

  /** Where a record is in memory. */
  public long at(int address) {
    return at(table, address);
  }

  /** The pages as they are now, for readers who go on while the log does. */
  public long[] table() {
    return table;
  }

  /** Where the next record goes at the earliest. */
  long position() {
    return (first + count - 1) << POSITION_SHIFT | ends[count - 1];
  }

  /** Where the pages end that are full: all but the last. */
  long fullPagesEnd() {
    return (first + count - 1) << POSITION_SHIFT | START;
  }

  /** How many bytes of the pages and their marks stay in memory. */
  long memoryBytes() {
    return memoryBytes;
  }

  /** How many bytes of the pages lie in files. */
  long diskBytes() {
    return diskBytes;
  }

  /** Whether the record was noted as outdated: another one took its place. One that has none need not be. */
  boolean isOutdated(int address) {
    return (Platform.getLong(null, mark(address)) >>> address & 1) != 0;
  }

  void setOutdated(int address, boolean outdated) {
    long mark = mark(address);
    long bit = 1L << address;
    long word = Platform.getLong(null, mark);
    Platform.putLong(null, mark, outdated ? word | bit : word & ~bit);
  }

  private long mark(int address) {
    return marks[address >>> SLOT_SHIFT] + ((address & UNIT_MASK) >>> 6 << 3);
  }

  /** Make room for a record of {@code size} bytes and return its address. */
  int allocate(int size) {
    int last = count - 1;
    int end = ends[last];
    int capacity = capacities[slots[last]];
    if (size > capacity - end) {
      if (size <= pageBytes - end && capacity < pageBytes) {
        grow(last, Math.min(pageBytes, Math.max(2 * capacity, end + size)));
      } else {
        addPage(Math.max(pageBytes, Math.addExact(START, size)));
        last = count - 1;
        end = START;
      }
    }
    ends[last] = end + size;
    return slots[last] << SLOT_SHIFT | end >>> UNIT_SHIFT;
  }

  /** Forget everything appended since the log was at {@code position}. */
  void truncate(long position) {
    if (position == position()) {
      return;
    }
    int keep = (int) ((position >>> POSITION_SHIFT) - first) + 1;
    // Rows and iterators of whoever wrote the rest may still point at it: they keep the old page.
    int slot = slots[keep - 1];
    long page = memory.allocatePage(capacities[slot]);
    Platform.copyMemory(null, table[slot], null, page, (int) position);
    table = table.clone();
    while (count > keep) {
      count--;
      release(slots[count]);
    }
    ends[count - 1] = (int) position;
    retire(table[slot], capacities[slot]);
    table[slot] = page;
  }

  /** Give up the pages that lie wholly before {@code position}. */
  void releaseBefore(long position) {
    int gone = (int) Math.min((position >>> POSITION_SHIFT) - first, count - 1);
    if (gone <= 0) {
      return;
    }
    table = table.clone();
    for (int i = 0; i < gone; i++) {
      release(slots[i]);
    }
    count -= gone;
    first += gone;
    System.arraycopy(slots, gone, slots, 0, count);
    System.arraycopy(ends, gone, ends, 0, count);
  }

  /** A walk over the records from one position to another. The log may grow meanwhile. */
  Walk walk(long from, long to) {
    return new Walk(from, to);
  }

  /** Free the pages that were given up. Nobody may point to them any more: no row, no iterator, no table. */
  void freeRetired() {
    while (retiredEnd > 0) {
      retiredEnd -= 2;
      memory.freePage(retired[retiredEnd], (int) retired[retiredEnd + 1]);
    }
  }

  /** Free all pages; nobody may point to any of them. */
  void close() {
    freeRetired();
    while (count > 0) {
      release(slots[--count]);
    }
    freeRetired();
  }

  private void grow(int page, int capacity) {
    int slot = slots[page];
    long larger = memory.allocatePage(capacity);
    long largerMarks = newMarks(larger, capacity);
    Platform.copyMemory(null, table[slot], null, larger, ends[page]);
    Platform.copyMemory(null, marks[slot], null, largerMarks, marksBytes(capacities[slot]));
    retire(table[slot], capacities[slot]);
    dropMarks(slot);
    setPage(slot, larger, largerMarks, capacity);
  }

  /** Where this fails, nothing has changed: it may be asked for again after an undo. */
  private void addPage(int capacity) {
    if (free == 0 && unusedSlot == MAX_SLOTS) {
      throw new IllegalStateException("the state of one partition is over 32 GB: use more partitions");
    }
    if (free == 0 && unusedSlot == table.length) {
      table = Arrays.copyOf(table, 2 * unusedSlot);
      marks = Arrays.copyOf(marks, 2 * unusedSlot);
      capacities = Arrays.copyOf(capacities, 2 * unusedSlot);
    }
    if (count == slots.length) {
      slots = Arrays.copyOf(slots, 2 * count);
      ends = Arrays.copyOf(ends, 2 * count);
    }
    long page = memory.allocatePage(capacity);
    long pageMarks = newMarks(page, capacity);
    int slot = free > 0 ? freeSlots[--free] : unusedSlot++;
    setPage(slot, page, pageMarks, capacity);
    slots[count] = slot;
    ends[count] = START;
    count++;
  }

  private void setPage(int slot, long page, long pageMarks, int capacity) {
    table[slot] = page;
    marks[slot] = pageMarks;
    capacities[slot] = capacity;
    addBytes(capacity, 1);
  }

  /** Room for the marks of a page that is new; without it there is no page either. */
  private long newMarks(long page, int capacity) {
    try {
      return memory.allocate(marksBytes(capacity));
    } catch (OutOfMemoryError error) {
      memory.freePage(page, capacity);
      throw error;
    }
  }

  private void dropMarks(int slot) {
    memory.free(marks[slot], marksBytes(capacities[slot]));
    addBytes(capacities[slot], -1);
  }

  private static int marksBytes(int capacity) {
    return (capacity >>> UNIT_SHIFT + 6) + 1 << 3;
  }

  private void addBytes(int capacity, int sign) {
    memoryBytes += sign * (marksBytes(capacity) + (StateMemory.isSmall(capacity) ? (long) capacity : 0));
    diskBytes += sign * (StateMemory.isSmall(capacity) ? 0 : (long) capacity);
  }

  private void release(int slot) {
    retire(table[slot], capacities[slot]);
    dropMarks(slot);
    table[slot] = 0;
    if (free == freeSlots.length) {
      freeSlots = Arrays.copyOf(freeSlots, 2 * free);
    }
    freeSlots[free++] = slot;
  }

  private void retire(long page, int capacity) {
    if (retiredEnd == retired.length) {
      retired = Arrays.copyOf(retired, 2 * retiredEnd);
    }
    retired[retiredEnd++] = page;
    retired[retiredEnd++] = capacity;
  }

  /** Goes from record to record; before the first {@link #next} it stands nowhere. */
  public final class Walk {
    private final long to;
    private long number;
    private int offset;
    private int next;

    private Walk(long from, long to) {
      this.to = to;
      number = from >>> POSITION_SHIFT;
      next = (int) from;
    }

    /** Step to the next record, or return false at the end. */
    public boolean next() {
      while (next >= pageEnd()) {
        if (number >= to >>> POSITION_SHIFT) {
          return false;
        }
        number++;
        next = START;
      }
      offset = next;
      next += Record.size(null, at());
      return true;
    }

    /** Where the record is in memory. */
    public long at() {
      return table[slots[(int) (number - first)]] + offset;
    }

    int address() {
      return slots[(int) (number - first)] << SLOT_SHIFT | offset >>> UNIT_SHIFT;
    }

    /** The position after the record. */
    long after() {
      return number << POSITION_SHIFT | next;
    }

    private int pageEnd() {
      return number == to >>> POSITION_SHIFT ? (int) to : ends[(int) (number - first)];
    }
  }
}
