package io.safekeeper.spark.commits;

/** Receives the records of commits in order, block by block. */
public interface RecordSink {
  /** Whole records, from {@code bytes[from]} to {@code bytes[to]}. The array is used again when this has returned. */
  void records(byte[] bytes, int from, int to);
}
