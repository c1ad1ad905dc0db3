package io.safekeeper.spark;

/** Receives the records of commits in order, block by block. */
interface RecordSink {
  /** Whole records, from {@code bytes[from]} to {@code bytes[to]}. The array is used again when this has returned. */
  void records(byte[] bytes, int from, int to);
}
