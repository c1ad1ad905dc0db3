package io.safekeeper.spark.state;

import java.util.Arrays;
import org.apache.spark.unsafe.Platform;

/** A list of longs, outside the heap, that is added to and taken from at its end and dropped at its start. */
final class UndoList {
  private static final int CHUNK_SHIFT = 10;
  private static final int CHUNK_MASK = (1 << CHUNK_SHIFT) - 1;
  private static final int CHUNK_BYTES = 8 << CHUNK_SHIFT;

  private final StateMemory memory;
  private long[] chunks = new long[4];
  private int count;
  private long dropped; // chunks that were dropped at the start
  private long end; // how many there ever were, but for those that were taken back

  UndoList(StateMemory memory) {
    this.memory = memory;
  }

  /** How many were ever added and not taken back; those that were dropped count. */
  long end() {
    return end;
  }

  long bytes() {
    return (long) count * CHUNK_BYTES;
  }

  /** Make room for so many more. */
  void reserve(int more) {
    while (dropped + count << CHUNK_SHIFT < end + more) {
      if (count == chunks.length) {
        chunks = Arrays.copyOf(chunks, 2 * count);
      }
      chunks[count] = memory.allocate(CHUNK_BYTES);
      count++;
    }
  }

  /** Add one; there is room for it. */
  void add(long entry) {
    Platform.putLong(null, place(end++), entry);
  }

  /** Take the last one back. */
  long take() {
    return Platform.getLong(null, place(--end));
  }

  /** Drop all before the one of that number, as {@link #end} counted it. */
  void dropBefore(long number) {
    int gone = (int) ((number >>> CHUNK_SHIFT) - dropped);
    if (gone > 0) {
      for (int i = 0; i < gone; i++) {
        memory.free(chunks[i], CHUNK_BYTES);
      }
      count -= gone;
      System.arraycopy(chunks, gone, chunks, 0, count);
      dropped += gone;
    }
  }

  void close() {
    while (count > 0) {
      memory.free(chunks[--count], CHUNK_BYTES);
    }
  }

  private long place(long number) {
    return chunks[(int) ((number >>> CHUNK_SHIFT) - dropped)] + 8 * (number & CHUNK_MASK);
  }
}
