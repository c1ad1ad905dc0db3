package io.safekeeper.spark.state;

/**
 * A version of the state that the log can go back to: the one after a commit, or the empty one.
 *
 * @param id the commit's id; the empty state has one, too, that whoever opens it chooses
 * @param version the commit's version
 * @param position where the log ended
 * @param undo how many entries the undo list had ever had
 * @param appended how many bytes had ever been appended
 * @param liveBytes the size of the newest records of all keys
 * @param start where the oldest of them may be
 * @param startAppended how many bytes had been appended before the start
 */
public record Savepoint(
    String id,
    long version,
    long position,
    long undo,
    long appended,
    long liveBytes,
    long start,
    long startAppended) {}
