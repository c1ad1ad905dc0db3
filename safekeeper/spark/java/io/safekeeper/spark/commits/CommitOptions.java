package io.safekeeper.spark.commits;

/**
 * How commits are made.
 *
 * @param codec how they are compressed
 * @param valueBytes a commit that is larger is written in parts
 * @param cleanAt how many times the size of the state a restart may have to read before commits begin to move old
 *     records
 */
public record CommitOptions(BlockCodec codec, int valueBytes, double cleanAt) {}
