package io.safekeeper.spark.state;

import org.apache.spark.sql.execution.streaming.state.RocksDBKeyStateEncoder;

/** One column family of a state log: its keys, and once Spark has told how they are encoded, their order. */
public final class Family {
  /** The family that every store has. */
  public static final int DEFAULT = 0;

  /** The family whose keys are the other families' names, so that they are committed, undone and loaded like states. */
  public static final int CATALOG = 0xffff;

  final int id;
  final HashIndex index;
  private final Pages pages;
  private OrderedIndex ordered;

  Family(int id, Pages pages) {
    this.id = id;
    this.pages = pages;
    this.index = new HashIndex(pages);
  }

  /** The keys in order; null in a family that is not scanned. */
  public OrderedIndex ordered() {
    return ordered;
  }

  /** Begin to keep the keys in order, those that are there already too. Doing it twice is not an error. */
  public void keepOrder(RocksDBKeyStateEncoder encoder, int keyFields) {
    if (ordered != null) {
      return;
    }
    ordered = new OrderedIndex(encoder, keyFields);
    try (HashIndex.Snapshot all = index.snapshot()) {
      for (int address = all.next(); address != 0; address = all.next()) {
        ordered.put(pages.page(address), Pages.offset(address), address);
      }
    }
  }

  /**
   * Let the newest record of the key in the record at {@code holder} be the one at {@code address}, or none with 0;
   * return the one before.
   */
  int link(int holder, int address) {
    return link(holder, hashOfKey(holder), address);
  }

  /** The same where the hash of the key is known. */
  int link(int holder, int hash, int address) {
    byte[] page = pages.page(holder);
    int record = Pages.offset(holder);
    long key = Record.at(Record.keyOffset(page, record));
    int length = Record.keyLength(page, record);
    if (ordered != null) {
      ordered.put(page, record, address);
    }
    return address == 0 ? index.remove(hash, page, key, length) : index.put(hash, page, key, length, address);
  }

  /** Whether the record at {@code address} is its key's newest. */
  boolean isNewest(int address) {
    return index.holds(hashOfKey(address), address);
  }

  /** Let a copy of a record that is its key's newest take its place. */
  void relink(int address, int copy) {
    index.replace(hashOfKey(address), address, copy);
    if (ordered != null) {
      ordered.put(pages.page(copy), Pages.offset(copy), copy);
    }
  }

  /** The hash of the key in the record at {@code address}. */
  int hashOfKey(int address) {
    byte[] page = pages.page(address);
    int record = Pages.offset(address);
    return HashIndex.hash(page, Record.at(Record.keyOffset(page, record)), Record.keyLength(page, record));
  }
}
