package io.safekeeper.spark.commits;

/** A commit that is needed is not in the store. It is never read as an empty one. */
public final class MissingCommit extends RuntimeException {
  private static final long serialVersionUID = 1L;

  MissingCommit(CommitKey key) {
    super("the commit of " + key + " is not in the store");
  }

  public MissingCommit(long version, String id) {
    super("the store has no commit of version " + version + (id == null ? "" : " with the id " + id));
  }
}
