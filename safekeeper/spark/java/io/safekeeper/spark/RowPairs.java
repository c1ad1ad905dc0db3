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
final class RowPairs extends AbstractIterator<UnsafeRowPair> {
  private final byte[][] table;
  private final Addresses addresses;
  private final UnsafeRow key;
  private final UnsafeRow value;
  private final UnsafeRowPair pair = new UnsafeRowPair(null, null);
  private final boolean lists; // whether values are lists
  private final boolean everyValue; // whether each value of a list is a step of its own
  private ValueList.Rows values;
  private int next;

  private RowPairs(byte[][] table, Addresses addresses, FamilySpec spec, boolean everyValue) {
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
      byte[][] table, Addresses addresses, FamilySpec spec, boolean everyValue) {
    return new StateStoreIterator<>(new RowPairs(table, addresses, spec, everyValue), () -> {
      addresses.close();
      return BoxedUnit.UNIT;
    });
  }

  @Override
  public boolean hasNext() {
    return next != 0 || everyValue && values != null && values.hasNext();
  }

  @Override
  public UnsafeRowPair next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    if (!everyValue || values == null || !values.hasNext()) {
      step();
    }
    return pair.withRows(key, lists ? firstOrNext() : value);
  }

  private UnsafeRow firstOrNext() {
    return values.hasNext() ? values.next() : null;
  }

  private void step() {
    byte[] page = Pages.page(table, next);
    int record = Pages.offset(next);
    key.pointTo(page, Record.at(Record.keyOffset(page, record)), Record.keyLength(page, record));
    int at = Record.valueOffset(page, record);
    int length = Record.valueLength(page, record);
    if (lists) {
      values = new ValueList.Rows(page, at, length, value);
    } else {
      value.pointTo(page, Record.at(at), length);
    }
    next = addresses.next();
  }
}
