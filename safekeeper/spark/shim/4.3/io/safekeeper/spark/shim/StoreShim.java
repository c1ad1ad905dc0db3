package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.StateStore;

/** What a store is in Spark 4.3. */
public abstract class StoreShim implements StateStore {}
