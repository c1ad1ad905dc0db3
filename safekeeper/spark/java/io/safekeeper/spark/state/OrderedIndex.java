package io.safekeeper.spark.state;

import java.util.Arrays;
import java.util.NavigableMap;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.RocksDBKeyStateEncoder;

/**
 * The newest record of each key, in the order of the keys as Spark's encoder spells them; only for stores that scan by
 * prefix or range. The encoded keys live here alone: the log holds the rows.
 *
 * <p>A scan takes down its addresses when it is opened, so later changes do not show in it.
 */
public final class OrderedIndex {
  private final NavigableMap<byte[], Integer> newest = new TreeMap<>(Arrays::compareUnsigned);
  private final RocksDBKeyStateEncoder encoder;
  private final UnsafeRow key;

  OrderedIndex(RocksDBKeyStateEncoder encoder, int keyFields) {
    this.encoder = encoder;
    this.key = new UnsafeRow(keyFields);
  }

  /** Let the newest record of the key in this record be the one at {@code address}; with 0, forget the key. */
  void put(long record, int address) {
    key.pointTo(null, Record.keyAt(null, record), Record.keyLength(null, record));
    byte[] encoded = encoder.encodeKey(key);
    if (address == 0) {
      newest.remove(encoded);
    } else {
      newest.put(encoded, address);
    }
  }

  Addresses all() {
    return listed(newest);
  }

  public Addresses startingWith(byte[] prefix) {
    byte[] end = successor(prefix);
    return listed(end == null ? newest.tailMap(prefix, true) : newest.subMap(prefix, true, end, false));
  }

  /** The records from one key on and before another; null for a bound that is open. */
  public Addresses between(byte[] from, byte[] to) {
    if (from != null && to != null && Arrays.compareUnsigned(from, to) >= 0) {
      return () -> 0;
    }
    NavigableMap<byte[], Integer> range = from == null ? newest : newest.tailMap(from, true);
    return listed(to == null ? range : range.headMap(to, false));
  }

  private static Addresses listed(NavigableMap<byte[], Integer> range) {
    return Addresses.of(range.values().stream().mapToInt(Integer::intValue).toArray());
  }

  /** The first key that does not start with the prefix any more; null if there is none. */
  private static byte[] successor(byte[] prefix) {
    for (int i = prefix.length - 1; i >= 0; i--) {
      if (prefix[i] != (byte) 0xff) {
        byte[] next = Arrays.copyOf(prefix, i + 1);
        next[i]++;
        return next;
      }
    }
    return null;
  }
}
