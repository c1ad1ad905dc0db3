package io.safekeeper.spark.commits;

/**
 * What the head of a commit says: the value that is written last, under the commit's key, and makes the commit whole.
 *
 * @param codec how the blocks are compressed
 * @param parts how many values come before the head
 * @param version the version of the state after the commit
 * @param live the number of keys after the commit
 * @param oldest the oldest version whose commit is needed to load this one
 * @param offset how many bytes of that oldest commit are needed no more
 * @param rawBytes the size of the records before they were compressed
 */
public record CommitHead(
    BlockCodec codec, int parts, long version, long live, long oldest, long offset, long rawBytes) {}
