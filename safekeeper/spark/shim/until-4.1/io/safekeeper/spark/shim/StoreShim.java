package io.safekeeper.spark.shim;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Set;

/** What a store is up to Spark 4.1, and what later ones added, which nobody calls here; in 4.0 not the first three either. */
public abstract class StoreShim implements StateStore {
  public abstract void putList(UnsafeRow key, UnsafeRow[] values, String family);

  public abstract void mergeList(UnsafeRow key, UnsafeRow[] values, String family);

  public abstract void release();

  public abstract Iterator<UnsafeRow> multiGet(UnsafeRow[] keys, String family);

  public abstract boolean keyExists(UnsafeRow key, String family);

  public abstract StateStoreIterator<UnsafeRowPair> iteratorWithMultiValues(String family);

  public abstract StateStoreIterator<UnsafeRowPair> prefixScanWithMultiValues(UnsafeRow prefix, String family);

  public abstract StateStoreIterator<UnsafeRowPair> rangeScan(
      Option<UnsafeRow> from, Option<UnsafeRow> to, String family);

  public abstract StateStoreIterator<UnsafeRowPair> rangeScanWithMultiValues(
      Option<UnsafeRow> from, Option<UnsafeRow> to, String family);

  public abstract void deleteRange(UnsafeRow from, UnsafeRow to, String family);

  public abstract Set<String> allColumnFamilyNames();

  public abstract void registerColFamily(
      String name, StructType key, StructType value, KeyStateEncoderSpec encoding, boolean multiple, boolean internal);
}
