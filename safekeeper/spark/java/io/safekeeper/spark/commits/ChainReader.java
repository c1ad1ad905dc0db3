package io.safekeeper.spark.commits;

/** Receives what is needed of a whole chain of commits. */
interface ChainReader extends CommitReader {
  /** This is what the chain leads to, before anything else is known. */
  void begin(CommitHead newest);
}
