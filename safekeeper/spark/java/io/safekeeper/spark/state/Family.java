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

  Family(int id, StateMemory memory, Pages pages) {
    this.id = id;
    this.pages = pages;
    this.index = new HashIndex(memory, pages);
  }

  /** The keys in order; null in a family that is not scanned. */
  public OrderedIndex ordered() {
    return ordered;
  }

  void dropOrder() {
    ordered = null;
  }

  /** Begin to keep the keys in order, those that are there already too. Doing it twice is not an error. */
  public void keepOrder(RocksDBKeyStateEncoder encoder, int keyFields) {
    if (ordered != null) {
      return;
    }
    ordered = new OrderedIndex(encoder, keyFields);
    try (HashIndex.Snapshot all = index.snapshot()) {
      for (int address = all.next(); address != 0; address = all.next()) {
        ordered.put(pages.at(address), address);
      }
    }
  }

  /**
   * Let the newest record of the key in the record at {@code holder}, which has that hash, be the one at {@code address},
   * or none with 0; return the one before. The index has room for it.
   */
  int link(int holder, int hash, int address) {
    long record = pages.at(holder);
    long key = Record.keyAt(null, record);
    int length = Record.keyLength(null, record);
    if (ordered != null) {
      ordered.put(record, address);
    }
    return address == 0 ? index.remove(hash, null, key, length) : index.put(hash, null, key, length, address);
  }

  /** Let a copy of a record that is its key's newest, and has that hash, take its place. */
  void relink(int address, int hash, int copy) {
    index.replace(hash, address, copy);
    if (ordered != null) {
      ordered.put(pages.at(copy), copy);
    }
  }

  /** The hash of the key in the record at {@code address}. */
  int hashOfKey(int address) {
    long record = pages.at(address);
    return HashIndex.hash(null, Record.keyAt(null, record), Record.keyLength(null, record));
  }
}
