package io.safekeeper.spark.commits;

/** Receives the records of commits in order, and is told where each commit ends. */
public interface CommitReader extends RecordSink {
  /** These were all records of this commit. */
  void end(CommitKey key, CommitHead head);
}
