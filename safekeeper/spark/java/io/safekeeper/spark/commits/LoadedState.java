package io.safekeeper.spark.commits;

import io.safekeeper.spark.state.StateLog;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The state of one partition in memory, and how it gets from one version to another: by undo, by replay of the
 * commits that are missing, and only where neither will do, by a load from the beginning.
 *
 * <p>For whoever holds the provider's lease.
 */
public final class LoadedState {
  private static final Logger LOG = LoggerFactory.getLogger(LoadedState.class);
  private static final long PROGRESS_NANOS = TimeUnit.SECONDS.toNanos(5);

  private final Commits commits;
  private final CommitOptions options;
  private final Supplier<StateLog> newLog;
  private StateLog log; // null when nothing is loaded
  private RetiredLogs retired = new RetiredLogs();
  private OpenCommit open; // the next commit, if some of it was sent already
  private long lastTime; // of the newest commit that was seen
  private long loadMicros;
  private long commitsRead;

  /** What a commit did and cost: times in microseconds, the bytes of its records, and as they were sent. */
  public record Committed(
      CommitKey key,
      long encodeMicros,
      long agentMicros,
      long storeMicros,
      long appended,
      long cleaned,
      long shipped,
      long agentRestarts,
      long planned,
      long hits) {}

  public LoadedState(Commits commits, CommitOptions options, Supplier<StateLog> newLog) {
    this.commits = commits;
    this.options = options;
    this.newLog = newLog;
  }

  public StateLog log() {
    return log;
  }

  /** How long the last {@link #moveTo} took, in microseconds. */
  public long loadMicros() {
    return loadMicros;
  }

  /** How many commits it had to read. */
  public long commitsRead() {
    return commitsRead;
  }

  /** Give the state up. Its memory is freed when {@link #freeUnloaded} says that nobody points to it. */
  public void unload() {
    abandon();
    if (log != null) {
      log.dropOrder(); // which is on the heap, and that may be full
      retired.add(log);
      log = null;
    }
  }

  /** Free the states that were given up: no row and no iterator points to them any more. */
  public void freeUnloaded() {
    retired.free();
  }

  /** Free nothing of the states until now while this says that rows are read which point into them. */
  public void keepWhile(BooleanSupplier areRead) {
    retired.keepWhile(areRead);
  }

  /** What could not be freed yet; it is the caller's now. */
  public RetiredLogs takeRetired() {
    RetiredLogs taken = retired;
    retired = new RetiredLogs();
    return taken;
  }

  /** Free them and what the state itself has given up, under the same condition; see {@link StateLog#freeRetired}. */
  public void freeRetired() {
    if (retired.free() && log != null) {
      log.freeRetired();
    }
  }

  /** Become the empty state, as of that version. */
  public void moveToEmpty(long version) {
    startAnew();
    log.addSavepoint(CommitKey.NO_PARENT, version);
  }

  /**
   * Become the state after the commit of that version, and of that id unless it is null.
   *
   * @throws MissingCommit if that commit or one that it needs is not in the store
   */
  public void moveTo(long version, String id) throws IOException {
    long started = System.nanoTime();
    commitsRead = 0;
    String known = version == 0 ? CommitKey.NO_PARENT : id;
    if (known != null && log != null && log.canUndoTo(version, known)) {
      log.undoTo(known);
    } else if (version == 0) {
      moveToEmpty(0);
    } else {
      moveAlongHistory(version, id);
    }
    loadMicros = (System.nanoTime() - started) / 1000;
  }

  /** Begin with an empty log. When a state is moved, no store is open: the old one need not wait to be freed. */
  private void startAnew() {
    unload();
    freeRetired();
    log = newLog.get();
  }

  private void moveAlongHistory(long version, String id) throws IOException {
    History history = commits.history();
    lastTime = Math.max(lastTime, history.lastTime());
    CommitKey target = history.find(version, id).orElseThrow(() -> new MissingCommit(version, id));
    List<CommitKey> missing = new ArrayList<>(); // newest first
    for (CommitKey commit = target; ; commit = history.parentOf(commit)) {
      if (log != null && log.canUndoTo(commit.version(), commit.id())) {
        log.undoTo(commit.id());
        replay(missing, history, true);
        return;
      }
      missing.add(commit);
      if (commit.version() <= target.oldest()) {
        startAnew();
        replay(missing, history, false);
        return;
      }
    }
  }

  /** Apply commits, newest first, to the log. If it was empty before, only the last of them can be gone back to. */
  private void replay(List<CommitKey> missing, History history, boolean warm) throws IOException {
    List<CommitKey> chain = new ArrayList<>(missing);
    Collections.reverse(chain);
    Replay replay = new Replay(log, chain, warm);
    boolean whole = false;
    try {
      if (warm) {
        commits.read(chain, history, replay);
      } else {
        commits.load(chain, history, replay);
      }
      whole = true;
    } finally {
      if (!whole) {
        unload();
      }
    }
  }

  /** Applies a chain of commits to a log; says in Spark's log how far it is, where that takes long. */
  private final class Replay implements ChainReader {
    private final StateLog target;
    private final List<CommitKey> chain;
    private final boolean warm;
    private final long started = System.nanoTime();
    private long reported = started;
    private long bytes;

    Replay(StateLog target, List<CommitKey> chain, boolean warm) {
      this.target = target;
      this.chain = chain;
      this.warm = warm;
    }

    @Override
    public void begin(CommitHead newest) {
      target.expect(newest.live());
      target.passOver(newest.offset());
    }

    @Override
    public void records(byte[] block, int from, int to) {
      target.replay(block, from, to);
      bytes += to - from;
      if (System.nanoTime() - reported > PROGRESS_NANOS) {
        reported = System.nanoTime();
        report("Loading");
      }
    }

    @Override
    public void end(CommitKey key, CommitHead head) {
      commitsRead++;
      target.endCommit(key.version());
      boolean last = commitsRead == chain.size();
      if (last && target.size() != head.live()) {
        throw new IllegalStateException(
            "the state of " + key + " has " + target.size() + " keys instead of " + head.live());
      }
      if (warm) {
        target.advanceStart(head.oldest(), head.offset());
      }
      if (last || warm) {
        target.addSavepoint(key.id(), key.version());
      }
      if (last) {
        report("Loaded");
      }
    }

    private void report(String what) {
      LOG.info(
          "{} {} of {}: {} of {} commits, {} MB, {} keys, after {} ms, {} requests at once",
          what,
          chain.get(chain.size() - 1),
          commits.group(),
          commitsRead,
          chain.size(),
          bytes >> 20,
          target.size(),
          TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started),
          commits.readsAtOnce());
    }
  }

  /**
   * Encode and send the full pages of a commit that will be larger than one value, while the batch still runs.
   *
   * @return how many bytes must be uncommitted until it is worth to ask again
   */
  public long send() throws IOException {
    if (log.uncommittedBytes() >= options.valueBytes()) {
      if (open == null) {
        open = new OpenCommit(commits, options, log);
      }
      open.addFullPages();
    }
    return Math.max(log.uncommittedBytes() + StateLog.PAGE_BYTES, options.valueBytes());
  }

  /** Go back to the last commit. What was sent of the next one is deleted. */
  public void undo() {
    abandon();
    log.undoUncommitted();
  }

  private void abandon() {
    if (open != null) {
      open.close();
      open = null;
    }
  }

  /** Make what was changed since the last commit the next one; it is durable when this returns. */
  public Committed commit() throws IOException {
    long started = System.nanoTime();
    long appended = log.uncommittedBytes();
    long cleaned = log.clean(options.cleanAt());
    long cleanMicros = (System.nanoTime() - started) / 1000;
    long time = Math.max(System.currentTimeMillis(), lastTime + 1);
    OpenCommit commit = open == null ? new OpenCommit(commits, options, log) : open;
    open = null;
    try (commit) {
      CommitWriter writer = commit.writer();
      CommitKey key = commit.finish(time);
      lastTime = time;
      log.endCommit(key.version());
      log.addSavepoint(key.id(), key.version());
      return new Committed(
          key,
          cleanMicros + commit.encodeMicros(),
          Math.max(0, writer.micros() - writer.storeMicros()),
          writer.storeMicros(),
          appended,
          cleaned,
          writer.bytes(),
          commits.takeAgentRestarts(),
          writer.planned(),
          writer.hits());
    }
  }
}
