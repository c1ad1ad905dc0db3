package io.safekeeper.spark;

import io.safekeeper.spark.shim.StoreShim;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/** A store as the tests use it; see {@link TestProvider}. Methods without a family use the default one. */
public final class TestStore {
  private static final String DEFAULT = "default";

  private final StoreShim store;
  private StateStoreIterator<UnsafeRowPair> open;

  TestStore(StateStore store) {
    this.store = (StoreShim) store;
  }

  public StoreShim store() {
    return store;
  }

  static UnsafeRow numbers(long... numbers) {
    UnsafeRowWriter writer = new UnsafeRowWriter(numbers.length);
    writer.resetRowWriter();
    for (int i = 0; i < numbers.length; i++) {
      writer.write(i, numbers[i]);
    }
    return writer.getRow();
  }

  static UnsafeRow value(String text) {
    UnsafeRowWriter writer = new UnsafeRowWriter(1);
    writer.resetRowWriter();
    writer.write(0, UTF8String.fromString(text));
    return writer.getRow();
  }

  private static UnsafeRow[] values(List<String> texts) {
    return texts.stream().map(TestStore::value).toArray(UnsafeRow[]::new);
  }

  static String text(UnsafeRow key) {
    return key.getLong(0) + ":" + key.getLong(1);
  }

  public TestStore put(long prefix, long key, String value) {
    store.put(numbers(prefix, key), value(value), DEFAULT);
    return this;
  }

  public TestStore putIn(String family, long prefix, long key, String value) {
    store.put(numbers(prefix, key), value(value), family);
    return this;
  }

  /** Put many keys, so that a commit is large; the values cannot be compressed much. */
  public TestStore putMany(int count, int length, long seed) {
    java.util.Random random = new java.util.Random(seed);
    for (int i = 0; i < count; i++) {
      StringBuilder text = new StringBuilder();
      while (text.length() < length) {
        text.append(Long.toString(random.nextLong() & Long.MAX_VALUE, 36));
      }
      put(0, i, text.toString());
    }
    return this;
  }

  public TestStore putList(String family, long prefix, long key, List<String> values) {
    store.putList(numbers(prefix, key), values(values), family);
    return this;
  }

  public TestStore merge(String family, long prefix, long key, List<String> values) {
    if (values.size() == 1) {
      store.merge(numbers(prefix, key), value(values.get(0)), family);
    } else {
      store.mergeList(numbers(prefix, key), values(values), family);
    }
    return this;
  }

  public TestStore remove(long prefix, long key) {
    store.remove(numbers(prefix, key), DEFAULT);
    return this;
  }

  public TestStore deleteRange(long fromPrefix, long fromKey, long toPrefix, long toKey) {
    store.deleteRange(numbers(fromPrefix, fromKey), numbers(toPrefix, toKey), DEFAULT);
    return this;
  }

  public String get(long prefix, long key) {
    return getIn(DEFAULT, prefix, key);
  }

  public String getIn(String family, long prefix, long key) {
    UnsafeRow found = store.get(numbers(prefix, key), family);
    return found == null ? null : found.getString(0);
  }

  public boolean has(long prefix, long key) {
    return store.keyExists(numbers(prefix, key), DEFAULT);
  }

  public List<String> getAll(List<List<Integer>> keys) {
    UnsafeRow[] rows = keys.stream().map(key -> numbers(key.get(0), key.get(1))).toArray(UnsafeRow[]::new);
    Iterator<UnsafeRow> found = store.multiGet(rows, DEFAULT);
    List<String> texts = new ArrayList<>();
    while (found.hasNext()) {
      UnsafeRow row = found.next();
      texts.add(row == null ? null : row.getString(0));
    }
    return texts;
  }

  public List<String> listOf(String family, long prefix, long key) {
    List<String> texts = new ArrayList<>();
    Iterator<UnsafeRow> found = store.valuesIterator(numbers(prefix, key), family);
    while (found.hasNext()) {
      texts.add(found.next().getString(0));
    }
    return texts;
  }

  public List<String> items() {
    return itemsIn(DEFAULT);
  }

  public List<String> itemsIn(String family) {
    return rest(store.iterator(family));
  }

  public List<String> everyValueIn(String family) {
    return rest(store.iteratorWithMultiValues(family));
  }

  public List<String> startingWith(long prefix) {
    return rest(store.prefixScan(numbers(prefix), DEFAULT));
  }

  public List<String> between(List<Integer> from, List<Integer> to) {
    return rest(store.rangeScan(bound(from), bound(to), DEFAULT));
  }

  private static Option<UnsafeRow> bound(List<Integer> key) {
    return key == null ? Option.empty() : Option.apply(numbers(key.get(0), key.get(1)));
  }

  /** Open an iterator that {@link #restOfIterator} reads later. */
  public TestStore openIterator(int steps) {
    open = store.iterator(DEFAULT);
    for (int i = 0; i < steps; i++) {
      open.next();
    }
    return this;
  }

  public List<String> restOfIterator() {
    return rest(open);
  }

  private static List<String> rest(StateStoreIterator<UnsafeRowPair> pairs) {
    List<String> texts = new ArrayList<>();
    while (pairs.hasNext()) {
      UnsafeRowPair pair = pairs.next();
      texts.add(text(pair.key()) + "=" + pair.value().getString(0));
    }
    pairs.close();
    return texts;
  }

  public TestStore createFamily(String name, String encoding, boolean lists) {
    store.createColFamilyIfAbsent(
        name, TestProvider.keySchema(encoding), TestProvider.VALUE, TestProvider.encoding(encoding), lists, false);
    return this;
  }

  public boolean removeFamily(String name) {
    return store.removeColFamilyIfExists(name);
  }

  public List<String> families() {
    return CollectionConverters.asJava(store.allColumnFamilyNames().toSeq()).stream().sorted().toList();
  }

  /** Commit and return the id, null in format 1. */
  public String commit() {
    store.commit();
    return store.getStateStoreCheckpointInfo().stateStoreCkptId().getOrElse(() -> null);
  }

  public String baseId() {
    return store.getStateStoreCheckpointInfo().baseStateStoreCkptId().getOrElse(() -> null);
  }

  public void abort() {
    store.abort();
  }

  public void release() {
    store.release();
  }

  /** What another store of its thread does first when it takes the lease. */
  public void endRows() {
    ((SafeKeeperStateStore) store).endRows();
  }

  public boolean hasCommitted() {
    return store.hasCommitted();
  }

  public long metric(String name) {
    var metrics = CollectionConverters.asJava(store.metrics().customMetrics());
    return metrics.entrySet().stream()
        .filter(metric -> metric.getKey().name().equals(name))
        .mapToLong(metric -> (Long) metric.getValue())
        .findFirst()
        .orElseThrow();
  }

  public long numKeys() {
    return store.metrics().numKeys();
  }
}
