package io.safekeeper.spark.state;

import org.apache.spark.unsafe.Platform;

/**
 * The layout of one record, the same in a page and in a commit.
 *
 * <pre>
 * record:     key u32 | value u32 | extension u64 (if EXTENDED) | key bytes | value bytes
 *             all parts are multiples of 8 bytes, as Spark's rows are; so the low three bits of both lengths are flags
 * key:        length | TOMBSTONE 1 | CLEANED 2 | EXTENDED 4
 * value:      length | MERGED 1 | OUTDATED 2
 * extension:  family u16 | 0 u16 | added u32
 *             the column family, 0 without an extension; for MERGED, how many bytes at the end of the value are new
 * </pre>
 *
 * Numbers have the byte order of the machine, as Spark's rows have; a commit says which one it was. Frozen: a change
 * makes a new format of commits. OUTDATED is a note for the memory that the record is in: whoever reads a commit, where
 * it stands on a record that has a successor in the same commit, passes over it.
 */
public final class Record {
  /** The key was removed; there is no value. */
  static final int TOMBSTONE = 1;

  /** The cleaner moved the record here from the old end of the log: no change to the state. */
  static final int CLEANED = 2;

  /** An extension follows the lengths. */
  static final int EXTENDED = 4;

  /** On the value: it is an older list of values with others added at its end. */
  static final int MERGED = 1;

  /** On the value: another record took its place. One that is not its key's newest need not have it. */
  static final int OUTDATED = 2;

  private static final int FLAGS = 7;
  private static final int HEADER_BYTES = 8;
  private static final int EXTENSION_BYTES = 8;

  private Record() {}

  static int sizeOf(int keyLength, int valueLength, boolean extended) {
    return Math.addExact(Math.addExact(HEADER_BYTES + (extended ? EXTENSION_BYTES : 0), keyLength), valueLength);
  }

  /** Write everything before the key and return the offset where the key belongs. */
  static int writeHeader(byte[] page, int offset, int keyLength, int valueLength, int flags, int family, int added) {
    boolean extended = family != 0 || added != 0;
    Platform.putInt(page, at(offset), keyLength | flags | (extended ? EXTENDED : 0));
    Platform.putInt(page, at(offset + 4), valueLength | (added != 0 ? MERGED : 0));
    if (!extended) {
      return offset + HEADER_BYTES;
    }
    Platform.putShort(page, at(offset + 8), (short) family);
    Platform.putShort(page, at(offset + 10), (short) 0);
    Platform.putInt(page, at(offset + 12), added);
    return offset + HEADER_BYTES + EXTENSION_BYTES;
  }

  static void markCleaned(byte[] page, int offset) {
    Platform.putInt(page, at(offset), (keyWord(page, offset) | CLEANED));
  }

  static boolean isOutdated(byte[] page, int offset) {
    return (valueWord(page, offset) & OUTDATED) != 0;
  }

  static void setOutdated(byte[] page, int offset, boolean outdated) {
    int word = valueWord(page, offset);
    Platform.putInt(page, at(offset + 4), outdated ? word | OUTDATED : word & ~OUTDATED);
  }

  public static int size(byte[] page, int offset) {
    return keyOffset(page, offset) - offset + keyLength(page, offset) + valueLength(page, offset);
  }

  public static int keyLength(byte[] page, int offset) {
    return keyWord(page, offset) & ~FLAGS;
  }

  public static int valueLength(byte[] page, int offset) {
    return valueWord(page, offset) & ~FLAGS;
  }

  public static int keyOffset(byte[] page, int offset) {
    return offset + HEADER_BYTES + ((keyWord(page, offset) & EXTENDED) != 0 ? EXTENSION_BYTES : 0);
  }

  public static int valueOffset(byte[] page, int offset) {
    return keyOffset(page, offset) + keyLength(page, offset);
  }

  public static boolean isTombstone(byte[] page, int offset) {
    return (keyWord(page, offset) & TOMBSTONE) != 0;
  }

  public static boolean isCleaned(byte[] page, int offset) {
    return (keyWord(page, offset) & CLEANED) != 0;
  }

  public static int family(byte[] page, int offset) {
    return (keyWord(page, offset) & EXTENDED) == 0 ? 0 : Platform.getShort(page, at(offset + 8)) & 0xffff;
  }

  /** How many bytes at the end of the value this record added to a list; 0 unless it is a merge. */
  public static int added(byte[] page, int offset) {
    return (valueWord(page, offset) & MERGED) == 0 ? 0 : Platform.getInt(page, at(offset + 12));
  }

  /** The size of the record at {@code offset}, after checking that a record can stand there before {@code end}. */
  public static int checkedSize(byte[] bytes, int offset, int end) {
    if (end - offset >= HEADER_BYTES) {
      long extension = (keyWord(bytes, offset) & EXTENDED) != 0 ? EXTENSION_BYTES : 0;
      long key = keyLength(bytes, offset);
      long value = valueLength(bytes, offset);
      if (key >= 0 && value >= 0 && HEADER_BYTES + extension + key + value <= end - offset) {
        return (int) (HEADER_BYTES + extension + key + value);
      }
    }
    throw new IllegalStateException("a commit holds half a record at its byte " + offset);
  }

  /** The address of a byte of an array, as Spark's {@code Platform} and rows take it. */
  public static long at(int offset) {
    return (long) Platform.BYTE_ARRAY_OFFSET + offset;
  }

  private static int keyWord(byte[] page, int offset) {
    return Platform.getInt(page, at(offset));
  }

  private static int valueWord(byte[] page, int offset) {
    return Platform.getInt(page, at(offset + 4));
  }
}
