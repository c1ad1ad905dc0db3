package io.safekeeper.spark;

import io.safekeeper.spark.state.Addresses;
import io.safekeeper.spark.state.Pages;
import io.safekeeper.spark.state.Record;
import io.safekeeper.spark.state.ValueList;
import java.util.NoSuchElementException;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import scala.collection.AbstractIterator;
import scala.runtime.BoxedUnit;

/**
 * Keys with their values as they were when the iterator was opened, whatever is put or removed meanwhile. The pair
 * and its rows are used again for each step; the rows point into the pages. Another thread than the store's own gets
 * copies.
 */
final class RowPairs extends HandedRows.RowSource {
  private final HandedRows rows;
  private final long[] table;
  private final Addresses addresses;
  private final UnsafeRow key;
  private final UnsafeRow value;
  private final UnsafeRowPair pair = new UnsafeRowPair(null, null);
  private final boolean lists; // whether values are lists
  private final boolean everyValue; // whether each value of a list is a step of its own
  private ValueList.Rows values; // of a list, those that are left
  private long record; // where the iterator is, in memory
  private int next;

  private RowPairs(HandedRows rows, long[] table, Addresses addresses, FamilySpec spec, boolean everyValue) {
    this.rows = rows;
    this.table = table;
    this.addresses = addresses;
    this.key = new UnsafeRow(spec.keyFields());
    this.value = new UnsafeRow(spec.valueFields());
    this.lists = spec.multiple();
    this.everyValue = everyValue;
    this.next = addresses.next();
  }

  /** An iterator for Spark, which closes it; one that was read to its end needs no closing. */
  static StateStoreIterator<UnsafeRowPair> over(
      HandedRows rows, long[] table, Addresses addresses, FamilySpec spec, boolean everyValue) {
    RowPairs pairs = new RowPairs(rows, table, addresses, spec, everyValue);
    AbstractIterator<UnsafeRowPair> steps = new AbstractIterator<>() {
      @Override
      public boolean hasNext() {
        return pairs.hasNext();
      }

      @Override
      public UnsafeRowPair next() {
        return pairs.next();
      }
    };
    return new StateStoreIterator<>(steps, () -> {
      synchronized (rows.lock()) {
        if (!rows.isOver()) { // else the index is somebody else's now
          addresses.close();
        }
      }
      return BoxedUnit.UNIT;
    });
  }

  private boolean hasNext() {
    return next != 0 || everyValue && values != null && values.hasNext();
  }

  private UnsafeRowPair next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    synchronized (rows.lock()) {
      boolean ours = rows.use(this);
      if (!everyValue || values == null || !values.hasNext()) {
        step();
      }
      if (ours) {
        return pair.withRows(keyIn(key), valueIn(value));
      }
      UnsafeRow found = valueIn(new UnsafeRow(value.numFields()));
      return new UnsafeRowPair(keyIn(new UnsafeRow(key.numFields())).copy(), found == null ? null : found.copy());
    }
  }

  private void step() {
    record = Pages.at(table, next);
    if (lists) {
      values = new ValueList.Rows(null, Record.valueAt(null, record), Record.valueLength(null, record), value);
    }
    next = addresses.next();
  }

  private UnsafeRow keyIn(UnsafeRow row) {
    row.pointTo(null, Record.keyAt(null, record), Record.keyLength(null, record));
    return row;
  }

  private UnsafeRow valueIn(UnsafeRow row) {
    if (lists) {
      return values.hasNext() ? values.next(row) : null;
    }
    row.pointTo(null, Record.valueAt(null, record), Record.valueLength(null, record));
    return row;
  }

  @Override
  UnsafeRow[] rows() {
    return new UnsafeRow[] {key, value};
  }
}
