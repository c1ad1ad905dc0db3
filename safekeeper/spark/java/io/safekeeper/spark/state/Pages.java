package io.safekeeper.spark.state;

import java.util.Arrays;

/**
 * The memory of a state log: pages of bytes that are only ever appended to.
 *
 * <p>A record's <em>address</em> is an int, the page's slot and the place in the page in units of 8 bytes; 0 is no
 * address. A <em>position</em> is a long that says how far the log had come, and grows for ever; slots are used
 * again. A record never spans two pages; one that is larger than a page gets a page of its own size.
 *
 * <p>Bytes once written are never changed while anybody could see them, but for the note that a record is outdated,
 * which means nothing to a reader: what is cut off is copied away first, and the table of pages is replaced, not edited,
 * when pages go. Whoever keeps a table ({@link #table}) keeps reading what was there.
 */
public final class Pages {
  private static final int PAGE_SHIFT = 19;

  /**
   * The largest size of a page, and the usual one: with the array's header 512 KB. The G1 collector gives whole regions
   * to arrays that are larger than half of one, which have 1 MB at least, and begins to mark the heap when it does.
   */
  static final int MAX_PAGE_BYTES = (1 << PAGE_SHIFT) - 16;

  private static final int UNIT_SHIFT = 3;
  private static final int SLOT_SHIFT = PAGE_SHIFT - UNIT_SHIFT;
  private static final int UNIT_MASK = (1 << SLOT_SHIFT) - 1;
  private static final int MAX_SLOTS = 1 << (32 - SLOT_SHIFT);
  private static final int POSITION_SHIFT = 32;
  private static final int FIRST_PAGE_BYTES = 16 << 10;
  private static final int START = 8; // so that no record has the address 0

  private final int pageBytes;
  private byte[][] table = new byte[4][];
  private int[] slots = new int[4]; // the log's pages in order, by their slot; page number n is slots[n - first]
  private int[] ends = new int[4]; // by page like slots: where the page's records end
  private long first; // the number of the oldest page that is kept
  private int count;
  private int unusedSlot; // slots from here on were never used
  private int[] freeSlots = new int[4];
  private int free;
  private long bytes;

  /** Room for a first, small page; it grows up to {@code pageBytes}, and so large are all that follow. */
  Pages(int pageBytes) {
    this.pageBytes = pageBytes;
    addPage(Math.min(FIRST_PAGE_BYTES, pageBytes));
  }

  public static byte[] page(byte[][] table, int address) {
    return table[address >>> SLOT_SHIFT];
  }

  public static int offset(int address) {
    return (address & UNIT_MASK) << UNIT_SHIFT;
  }

  public byte[] page(int address) {
    return table[address >>> SLOT_SHIFT];
  }

  /** The pages as they are now, for readers who go on while the log does. */
  public byte[][] table() {
    return table;
  }

  /** Where the next record goes at the earliest. */
  long position() {
    return (first + count - 1) << POSITION_SHIFT | ends[count - 1];
  }

  /** The memory that the pages occupy. */
  long bytes() {
    return bytes;
  }

  /** Make room for a record of {@code size} bytes and return its address. */
  int allocate(int size) {
    int last = count - 1;
    int end = ends[last];
    byte[] page = table[slots[last]];
    if (size > page.length - end) {
      if (size <= pageBytes - end && page.length < pageBytes) {
        grow(last, Math.min(pageBytes, Math.max(2 * page.length, end + size)));
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
    table = table.clone();
    int keep = (int) ((position >>> POSITION_SHIFT) - first) + 1;
    while (count > keep) {
      count--;
      release(slots[count]);
    }
    ends[count - 1] = (int) position;
    // Rows and iterators of whoever wrote the rest may still point at it: they keep the old array.
    byte[] old = table[slots[count - 1]];
    byte[] page = new byte[old.length];
    System.arraycopy(old, 0, page, 0, ends[count - 1]);
    table[slots[count - 1]] = page;
  }

  /** Give back the pages that lie wholly before {@code position}. */
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

  private void grow(int page, int capacity) {
    byte[] old = table[slots[page]];
    table[slots[page]] = Arrays.copyOf(old, capacity);
    bytes += capacity - old.length;
  }

  /** Where this fails, nothing has changed: it may be asked for again after an undo. */
  private void addPage(int capacity) {
    if (free == 0 && unusedSlot == MAX_SLOTS) {
      throw new IllegalStateException("the state of one partition is over 32 GB: use more partitions");
    }
    if (free == 0 && unusedSlot == table.length) {
      table = Arrays.copyOf(table, 2 * unusedSlot);
    }
    if (count == slots.length) {
      slots = Arrays.copyOf(slots, 2 * count);
      ends = Arrays.copyOf(ends, 2 * count);
    }
    byte[] page = new byte[capacity];
    int slot = free > 0 ? freeSlots[--free] : unusedSlot++;
    table[slot] = page;
    bytes += capacity;
    slots[count] = slot;
    ends[count] = START;
    count++;
  }

  private void release(int slot) {
    bytes -= table[slot].length;
    table[slot] = null;
    if (free == freeSlots.length) {
      freeSlots = Arrays.copyOf(freeSlots, 2 * free);
    }
    freeSlots[free++] = slot;
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
      next += Record.size(page(), offset);
      return true;
    }

    public byte[] page() {
      return table[slots[(int) (number - first)]];
    }

    public int offset() {
      return offset;
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
