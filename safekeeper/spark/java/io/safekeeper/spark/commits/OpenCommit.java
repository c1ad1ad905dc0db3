package io.safekeeper.spark.commits;

import io.safekeeper.spark.state.Savepoint;
import io.safekeeper.spark.state.StateLog;
import java.io.IOException;
import java.util.UUID;

/**
 * The commit that a store is about to make. What was appended never changes, so of a large one the full pages are encoded
 * and sent while the batch still runs. To be closed, whether or not it became a commit.
 */
final class OpenCommit implements AutoCloseable {
  private final CommitWriter writer;
  private final CommitEncoder encoder;
  private final StateLog log;
  private final Savepoint base;
  private final String id = UUID.randomUUID().toString();
  private long encodedTo;
  private boolean encoding; // has begun, and has not come to its end
  private long encodeNanos;

  OpenCommit(Commits commits, CommitOptions options, StateLog log) {
    this.log = log;
    base = log.current();
    encodedTo = base.position();
    writer = commits.write(version(), id);
    encoder = new CommitEncoder(options.codec(), options.valueBytes(), log.uncommittedBytes(), writer);
  }

  long version() {
    return base.version() + 1;
  }

  CommitWriter writer() {
    return writer;
  }

  /** How long it took to encode, without waiting for the store. */
  long encodeMicros() {
    return encodeNanos / 1000 - writer.micros();
  }

  /** Encode the pages that are full, and send the parts that these make. */
  void addFullPages() throws IOException {
    long started = System.nanoTime();
    long to = log.fullPagesEnd();
    if (to > encodedTo) {
      encode(to);
    }
    encodeNanos += System.nanoTime() - started;
  }

  /** Encode and send the rest, the head last: it is durable when this returns. */
  CommitKey finish(long time) throws IOException {
    long started = System.nanoTime();
    CommitKey key = new CommitKey(version(), id, base.id(), log.oldestVersion(version()), time);
    writer.setKey(key);
    encode(log.position());
    encoder.finish(log, version());
    encodeNanos += System.nanoTime() - started;
    return key;
  }

  private void encode(long to) throws IOException {
    if (encoding) {
      throw new IllegalStateException("a part of the commit was not sent: the store can only be aborted");
    }
    encoding = true;
    encoder.add(log.walk(encodedTo, to));
    encodedTo = to;
    encoding = false;
  }

  @Override
  public void close() {
    writer.close();
  }
}
