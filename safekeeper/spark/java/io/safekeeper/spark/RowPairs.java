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
 * and its rows are used again for each step; the rows point into the pages.
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
  private ValueList.Rows values;
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
      addresses.close();
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
    rows.use(this);
    if (!everyValue || values == null || !values.hasNext()) {
      step();
    }
    return pair.withRows(key, lists ? firstOrNext() : value);
  }

  private UnsafeRow firstOrNext() {
    return values.hasNext() ? values.next() : null;
  }

  private void step() {
    long record = Pages.at(table, next);
    key.pointTo(null, Record.keyAt(null, record), Record.keyLength(null, record));
    long at = Record.valueAt(null, record);
    int length = Record.valueLength(null, record);
    if (lists) {
      values = new ValueList.Rows(null, at, length, value);
    } else {
      value.pointTo(null, at, length);
    }
    next = addresses.next();
  }

  @Override
  void detach() {
    HandedRows.detach(key);
    HandedRows.detach(value);
  }
}
