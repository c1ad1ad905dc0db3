package io.safekeeper.spark;

import io.safekeeper.spark.state.Family;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/** What is known of a column family of a loaded state, and the row that its values are returned in to the store's own thread. */
final class FamilyView extends HandedRows.RowSource {
  private final FamilySpec spec;
  private final Family family;
  private final UnsafeRow value;

  /**
   * @param spec what Spark said about it
   * @param family its keys; null if Spark knows the family and the state does not
   */
  FamilyView(FamilySpec spec, Family family) {
    this.spec = spec;
    this.family = family;
    this.value = new UnsafeRow(spec.valueFields());
  }

  FamilySpec spec() {
    return spec;
  }

  Family family() {
    return family;
  }

  UnsafeRow value() {
    return value;
  }

  @Override
  UnsafeRow[] rows() {
    return new UnsafeRow[] {value};
  }
}
