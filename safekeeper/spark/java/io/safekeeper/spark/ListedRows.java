package io.safekeeper.spark;

import io.safekeeper.spark.state.ValueList;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * The values of a key that has several. The row points into a page and is used again for each step; another thread than
 * the store's own gets copies.
 */
final class ListedRows extends HandedRows.RowSource {
  private final HandedRows rows;
  private final ValueList.Rows values;
  private final UnsafeRow row;

  /** A list of so many bytes, at a place in memory. */
  ListedRows(HandedRows rows, long at, int length, UnsafeRow row) {
    this.rows = rows;
    this.values = new ValueList.Rows(null, at, length, row);
    this.row = row;
  }

  Iterator<UnsafeRow> iterator() {
    return new AbstractIterator<>() {
      @Override
      public boolean hasNext() {
        return values.hasNext();
      }

      @Override
      public UnsafeRow next() {
        synchronized (rows.lock()) {
          return rows.use(ListedRows.this) ? values.next() : values.next(new UnsafeRow(row.numFields())).copy();
        }
      }
    };
  }

  @Override
  UnsafeRow[] rows() {
    return new UnsafeRow[] {row};
  }
}
