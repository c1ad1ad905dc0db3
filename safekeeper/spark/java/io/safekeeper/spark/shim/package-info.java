/**
 * All that differs between the minor versions of Spark: the classes of this package are in the folders of {@code shim},
 * of which {@code javac} gets those that are for one minor version.
 */
package io.safekeeper.spark.shim;
