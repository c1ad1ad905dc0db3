package io.safekeeper.bench;

import io.safekeeper.spark.shim.ReportShim;
import io.safekeeper.spark.shim.StoreShim;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateStoreCheckpointInfo;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Set;
import scala.collection.immutable.Set$;
import scala.runtime.BoxedUnit;

/** Always empty; what is put into it is gone. */
final class FloorStateStore extends StoreShim {
  private final StateStoreId id;
  private final long version;
  private boolean committed;

  FloorStateStore(StateStoreId id, long version) {
    this.id = id;
    this.version = version;
  }

  private static <T> StateStoreIterator<T> nothing() {
    return new StateStoreIterator<>(scala.collection.Iterator$.MODULE$.empty(), () -> BoxedUnit.UNIT);
  }

  @Override
  public StateStoreId id() {
    return id;
  }

  @Override
  public long version() {
    return version;
  }

  @Override
  public UnsafeRow get(UnsafeRow key, String family) {
    return null;
  }

  @Override
  public Iterator<UnsafeRow> multiGet(UnsafeRow[] keys, String family) {
    return scala.collection.Iterator$.MODULE$.fill(keys.length, () -> null);
  }

  @Override
  public boolean keyExists(UnsafeRow key, String family) {
    return false;
  }

  @Override
  public Iterator<UnsafeRow> valuesIterator(UnsafeRow key, String family) {
    return nothing();
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> prefixScan(UnsafeRow prefix, String family) {
    return nothing();
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> prefixScanWithMultiValues(UnsafeRow prefix, String family) {
    return nothing();
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> rangeScan(Option<UnsafeRow> from, Option<UnsafeRow> to, String family) {
    return nothing();
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> rangeScanWithMultiValues(
      Option<UnsafeRow> from, Option<UnsafeRow> to, String family) {
    return nothing();
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> iterator(String family) {
    return nothing();
  }

  @Override
  public StateStoreIterator<UnsafeRowPair> iteratorWithMultiValues(String family) {
    return nothing();
  }

  @Override
  public void put(UnsafeRow key, UnsafeRow value, String family) {}

  @Override
  public void putList(UnsafeRow key, UnsafeRow[] values, String family) {}

  @Override
  public void merge(UnsafeRow key, UnsafeRow value, String family) {}

  @Override
  public void mergeList(UnsafeRow key, UnsafeRow[] values, String family) {}

  @Override
  public void remove(UnsafeRow key, String family) {}

  @Override
  public void deleteRange(UnsafeRow from, UnsafeRow to, String family) {}

  @Override
  public void createColFamilyIfAbsent(
      String name, StructType key, StructType value, KeyStateEncoderSpec encoding, boolean multiple, boolean internal) {
  }

  @Override
  public void registerColFamily(
      String name, StructType key, StructType value, KeyStateEncoderSpec encoding, boolean multiple, boolean internal) {
  }

  @Override
  public boolean removeColFamilyIfExists(String name) {
    return false;
  }

  @Override
  public Set<String> allColumnFamilyNames() {
    return Set$.MODULE$.empty();
  }

  @Override
  public long commit() {
    committed = true;
    return version + 1;
  }

  @Override
  public boolean hasCommitted() {
    return committed;
  }

  @Override
  public void abort() {}

  @Override
  public void release() {}

  @Override
  public StateStoreMetrics metrics() {
    return ReportShim.metrics(0, 0, Map$.MODULE$.empty());
  }

  @Override
  public StateStoreCheckpointInfo getStateStoreCheckpointInfo() {
    return new StateStoreCheckpointInfo(id.partitionId(), version + 1, Option.empty(), Option.empty());
  }
}
