/** All that differs between the minor versions of Spark: this folder is for 4.3. */
package io.safekeeper.spark.shim;
