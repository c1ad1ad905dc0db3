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
 * makes a new format of commits. OUTDATED was a note of older versions for the memory that the record is in: whoever
 * reads a commit, where it stands on a record that has a successor in the same commit, passes over it.
 *
 * <p>A record is named as Spark's {@code Platform} names bytes: by an array and {@link #at}, or by null and where it is in
 * memory, as in {@link Pages}.
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

  /** On the value: another record took its place. Not written any more. */
  static final int OUTDATED = 2;

  private static final int FLAGS = 7;
  private static final int HEADER_BYTES = 8;
  private static final int EXTENSION_BYTES = 8;

  private Record() {}

  static int sizeOf(int keyLength, int valueLength, boolean extended) {
    return Math.addExact(Math.addExact(HEADER_BYTES + (extended ? EXTENSION_BYTES : 0), keyLength), valueLength);
  }

  /** Write everything before the key and return how many bytes that are. */
  static int writeHeader(long record, int keyLength, int valueLength, int flags, int family, int added) {
    boolean extended = family != 0 || added != 0;
    Platform.putInt(null, record, keyLength | flags | (extended ? EXTENDED : 0));
    Platform.putInt(null, record + 4, valueLength | (added != 0 ? MERGED : 0));
    if (!extended) {
      return HEADER_BYTES;
    }
    Platform.putShort(null, record + 8, (short) family);
    Platform.putShort(null, record + 10, (short) 0);
    Platform.putInt(null, record + 12, added);
    return HEADER_BYTES + EXTENSION_BYTES;
  }

  static void markCleaned(long record) {
    Platform.putInt(null, record, keyWord(null, record) | CLEANED);
  }

  /** Take away what an older version noted in the record itself. */
  static void clearOutdated(long record) {
    int word = valueWord(null, record);
    if ((word & OUTDATED) != 0) {
      Platform.putInt(null, record + 4, word & ~OUTDATED);
    }
  }

  public static int size(Object base, long record) {
    return headerBytes(base, record) + keyLength(base, record) + valueLength(base, record);
  }

  public static int keyLength(Object base, long record) {
    return keyWord(base, record) & ~FLAGS;
  }

  public static int valueLength(Object base, long record) {
    return valueWord(base, record) & ~FLAGS;
  }

  /** Where the key begins. */
  public static long keyAt(Object base, long record) {
    return record + headerBytes(base, record);
  }

  /** Where the value begins. */
  public static long valueAt(Object base, long record) {
    return keyAt(base, record) + keyLength(base, record);
  }

  public static boolean isTombstone(Object base, long record) {
    return (keyWord(base, record) & TOMBSTONE) != 0;
  }

  public static boolean isCleaned(Object base, long record) {
    return (keyWord(base, record) & CLEANED) != 0;
  }

  public static int family(Object base, long record) {
    return (keyWord(base, record) & EXTENDED) == 0 ? 0 : Platform.getShort(base, record + 8) & 0xffff;
  }

  /** How many bytes at the end of the value this record added to a list; 0 unless it is a merge. */
  public static int added(Object base, long record) {
    return (valueWord(base, record) & MERGED) == 0 ? 0 : Platform.getInt(base, record + 12);
  }

  /** The size of the record at {@code offset}, after checking that a record can stand there before {@code end}. */
  public static int checkedSize(byte[] bytes, int offset, int end) {
    if (end - offset >= HEADER_BYTES) {
      long extension = (keyWord(bytes, at(offset)) & EXTENDED) != 0 ? EXTENSION_BYTES : 0;
      long key = keyLength(bytes, at(offset));
      long value = valueLength(bytes, at(offset));
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

  private static int headerBytes(Object base, long record) {
    return HEADER_BYTES + ((keyWord(base, record) & EXTENDED) != 0 ? EXTENSION_BYTES : 0);
  }

  private static int keyWord(Object base, long record) {
    return Platform.getInt(base, record);
  }

  private static int valueWord(Object base, long record) {
    return Platform.getInt(base, record + 4);
  }
}
