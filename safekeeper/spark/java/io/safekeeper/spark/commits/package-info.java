/**
 * Commits: what was appended to the state since the last one, as it is kept in a store, and how the state is made of
 * them again.
 *
 * <p>A commit is one value, its head; if it is too large for one value, parts come before the head. A commit is written
 * once, under a key of its own, and names the commit that it is based on, so commits form chains.
 *
 * <p>Read {@code CommitKey} first (what a key says), then {@code CommitFormat} (the bytes), {@code CommitHead},
 * {@code BlockCodec} and {@code CommitEncoder}. {@code History} finds the chain of a version among the keys. {@code Commits} reads, writes and
 * deletes them, with {@code CommitWriter}, a {@code CommitOutput}, {@code ValuesOfChain} and {@code ReadAhead}; {@code RecordSink}, {@code CommitReader} and
 * {@code ChainReader} receive what was read. {@code LoadedState} takes a state from one version to another and makes
 * the next commit; {@code OpenCommit} is one in the making, {@code RetiredLogs} are states that were given up.
 */
package io.safekeeper.spark.commits;
