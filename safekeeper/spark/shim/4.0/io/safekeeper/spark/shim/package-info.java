/** All that differs between the minor versions of Spark: this folder is for 4.0. */
package io.safekeeper.spark.shim;
