package io.safekeeper.spark;

import io.safekeeper.spark.state.Family;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/**
 * What is known of a column family of a loaded state.
 *
 * @param spec what Spark said about it
 * @param family its keys; null if Spark knows the family and the state does not
 * @param value the row that values are returned in
 */
record FamilyView(FamilySpec spec, Family family, UnsafeRow value) {}
