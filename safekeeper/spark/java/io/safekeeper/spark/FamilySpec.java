package io.safekeeper.spark;

import io.safekeeper.spark.shim.SparkShim;
import io.safekeeper.spark.state.Family;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.RocksDBKeyStateEncoder;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateEncoder;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowDataEncoder;
import org.apache.spark.sql.types.StructType;

/**
 * What Spark said about a column family when it asked for it.
 *
 * @param keySchema of the rows that are its keys
 * @param multiple whether a key has a list of values
 * @param internal whether it is Spark's own and not counted among the user's keys
 */
record FamilySpec(
    String name,
    StructType keySchema,
    StructType valueSchema,
    RocksDBKeyStateEncoder encoder,
    boolean multiple,
    boolean internal) {

  /**
   * The schema of the keys is that of their encoding: beside it Spark gives one that lacks the event time where keys have
   * one (joins of format 4).
   */
  static FamilySpec of(
      String name,
      StructType valueSchema,
      KeyStateEncoderSpec encoding,
      boolean multiple,
      boolean internal) {
    UnsafeRowDataEncoder rows = new UnsafeRowDataEncoder(encoding, valueSchema);
    RocksDBKeyStateEncoder encoder = RocksDBStateEncoder.getKeyEncoder(rows, encoding, true);
    return new FamilySpec(name, encoding.keySchema(), valueSchema, encoder, multiple, internal);
  }

  /** Let the family keep its keys in order if they are asked for by prefix or range. */
  void keepOrder(Family family) {
    if (encoder.supportPrefixKeyScan() || SparkShim.supportsRangeScan(encoder)) {
      family.keepOrder(encoder, keyFields());
    }
  }

  int keyFields() {
    return keySchema.length();
  }

  int valueFields() {
    return valueSchema.length();
  }
}
