package io.safekeeper.spark.state;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import scala.collection.AbstractIterator;

/**
 * The value of a key that has several: rows one after the other, each with its length before it.
 *
 * <pre>
 * list:   (length u64 | row)...        as in a {@link Record}: multiples of 8, byte order of the machine
 * </pre>
 */
public final class ValueList {
  private static final int LENGTH_BYTES = 8;

  private ValueList() {}

  public static int sizeOf(UnsafeRow[] rows) {
    int size = 0;
    for (UnsafeRow row : rows) {
      size = Math.addExact(size, LENGTH_BYTES + row.getSizeInBytes());
    }
    return size;
  }

  /** Write the rows to {@code list} from {@code at} on. */
  public static void write(UnsafeRow[] rows, byte[] list, int at) {
    for (UnsafeRow row : rows) {
      int length = row.getSizeInBytes();
      Platform.putLong(list, Record.at(at), length);
      row.writeToMemory(list, Record.at(at + LENGTH_BYTES));
      at += LENGTH_BYTES + length;
    }
  }

  /** The rows of a list, in a row object that is used again for each. */
  public static final class Rows extends AbstractIterator<UnsafeRow> {
    private final Object base;
    private final UnsafeRow row;
    private final long end;
    private long at;

    /** A list of so many bytes, named as Spark's {@code Platform} does. */
    public Rows(Object base, long at, int length, UnsafeRow row) {
      this.base = base;
      this.row = row;
      this.at = at;
      this.end = at + length;
    }

    @Override
    public boolean hasNext() {
      return at < end;
    }

    @Override
    public UnsafeRow next() {
      return next(row);
    }

    /** The next row, in this row object. */
    public UnsafeRow next(UnsafeRow into) {
      int length = (int) Platform.getLong(base, at);
      into.pointTo(base, at + LENGTH_BYTES, length);
      at += LENGTH_BYTES + length;
      return into;
    }
  }
}
