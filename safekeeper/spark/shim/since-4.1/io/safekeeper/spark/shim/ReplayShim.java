package io.safekeeper.spark.shim;

import org.apache.spark.sql.execution.streaming.state.SupportsFineGrainedReplay;

/** What a provider adds that the state data source can replay. */
public interface ReplayShim extends SupportsFineGrainedReplay {}
