package io.safekeeper.spark.commits;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;

/**
 * The commits of one store, as one listing of its keys showed them.
 *
 * <p>A version may have been committed more than once: by a retry, by two actions on one batch, by a task that
 * everybody had given up. Such siblings have different ids; each names its parent, so each is the end of a chain of
 * its own.
 */
public final class History {
  private static final Comparator<CommitKey> BY_TIME =
      Comparator.comparingLong(CommitKey::time).thenComparing(CommitKey::id);

  private final List<byte[]> keys;
  private final Map<String, CommitKey> byId = new HashMap<>();
  private final Map<String, Integer> parts = new HashMap<>(); // by the commit's id

  History(List<byte[]> keys) {
    this.keys = keys;
    for (byte[] key : keys) {
      CommitKey.parse(key).ifPresent(commit -> byId.put(commit.id(), commit));
      CommitKey.idOfPart(key).ifPresent(id -> parts.merge(id, CommitKey.numberOfPart(key) + 1, Math::max));
    }
  }

  /** How many parts a commit has as far as the listing showed: it may show a key twice, and miss one that was new. */
  int partsOf(CommitKey commit) {
    return parts.getOrDefault(commit.id(), 0);
  }

  /**
   * The commit of a version, with that id unless it is null.
   *
   * <p>When nobody knows the id, as in Spark's checkpoint format 1, it is the commit that the latest one of all
   * descends from, else the latest of that version. The latest of all, not the one of the highest version: a query
   * may have been set back to an old batch, and then the higher versions are those that nobody wants any more.
   */
  public Optional<CommitKey> find(long version, String id) {
    if (id != null) {
      return Optional.ofNullable(byId.get(id)).filter(commit -> commit.version() == version);
    }
    for (CommitKey commit = latest().orElse(null); commit != null; commit = byId.get(commit.parent())) {
      if (commit.version() == version) {
        return Optional.of(commit);
      }
    }
    return byId.values().stream().filter(commit -> commit.version() == version).max(BY_TIME);
  }

  /** The commit that another one is based on. */
  public CommitKey parentOf(CommitKey commit) {
    CommitKey parent = byId.get(commit.parent());
    if (parent == null) {
      throw new MissingCommit(commit.version() - 1, commit.parent());
    }
    return parent;
  }

  /** The time of the latest commit, 0 if there is none. */
  long lastTime() {
    return latest().map(CommitKey::time).orElse(0L);
  }

  /**
   * The keys that no load of the latest commit's version, or of the {@code retained} before it, needs; oldest first.
   * Higher versions are kept, too.
   *
   * <p>Parts go only when their version is below all that is kept: those of a newer one may belong to a commit whose
   * head is just being written. In a query that was set back to its beginning those of an older one may, too: such ids
   * are {@code unfinished}.
   */
  List<byte[]> garbage(int retained, Predicate<String> unfinished) {
    long version = latest().map(CommitKey::version).orElse(0L);
    Set<CommitKey> needed = new HashSet<>();
    byId.values().stream()
        .filter(commit -> commit.version() >= version - retained)
        .forEach(commit -> keep(commit, needed));
    long oldest = needed.stream().mapToLong(CommitKey::version).min().orElse(0);
    List<byte[]> garbage = new ArrayList<>();
    for (byte[] key : keys) {
      Optional<CommitKey> commit = CommitKey.parse(key);
      boolean oldPart = CommitKey.versionOfPart(key).filter(part -> part < oldest).isPresent()
          && CommitKey.idOfPart(key).filter(unfinished).isEmpty();
      if (oldPart || commit.filter(found -> !needed.contains(found)).isPresent()) {
        garbage.add(key);
      }
    }
    garbage.sort(Comparator.comparingLong(History::version));
    return garbage;
  }

  private void keep(CommitKey kept, Set<CommitKey> needed) {
    for (CommitKey commit = kept; commit != null && commit.version() >= kept.oldest(); ) {
      needed.add(commit);
      commit = byId.get(commit.parent());
    }
  }

  private Optional<CommitKey> latest() {
    return byId.values().stream().max(BY_TIME);
  }

  private static long version(byte[] key) {
    return CommitKey.parse(key).map(CommitKey::version).or(() -> CommitKey.versionOfPart(key)).orElseThrow();
  }
}
