package io.safekeeper.spark.commits;

import io.safekeeper.spark.agent.Agent;
import io.safekeeper.spark.agent.AgentConnection;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Writes the values of a commit and counts what that costs. Parts are sent while the next are made, a few at a time:
 * {@link #part} waits when more are under way. The head is sent when all parts are durable, and is so when its method
 * returns.
 *
 * <p>To be closed, whether or not the head was written. If it was not even tried, the parts are deleted again, when the
 * last of them has come to its end. If it was tried and failed it may be there all the same, and then it needs its
 * parts: they stay, as those of a process that died do, and go with their version.
 */
final class CommitWriter implements CommitOutput, AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(CommitWriter.class);
  private static final int AT_ONCE = 3;
  private static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
    Thread thread = new Thread(work, "safekeeper-send");
    thread.setDaemon(true);
    return thread;
  });

  private final Agent agent;
  private final Commits commits;
  private final long version;
  private final String id;
  private final Semaphore room = new Semaphore(AT_ONCE);
  private final Queue<ByteBuffer> spare = new ConcurrentLinkedQueue<>();
  private final AtomicLong bytes = new AtomicLong();
  private final AtomicLong storeMicros = new AtomicLong();
  private final AtomicLong planned = new AtomicLong();
  private final AtomicLong hits = new AtomicLong();
  private volatile Throwable failure; // of a part
  private CommitKey key;
  private long micros;
  private int parts;
  private boolean headTried;

  CommitWriter(Agent agent, Commits commits, long version, String id) {
    this.agent = agent;
    this.commits = commits;
    this.version = version;
    this.id = id;
  }

  /** The key of the head; before the head is made. */
  void setKey(CommitKey head) {
    key = head;
  }

  @Override
  public void part(int number, ByteBuffer value) throws IOException {
    long asked = System.nanoTime();
    await(1);
    micros += (System.nanoTime() - asked) / 1000;
    if (number == 0) {
      commits.begin(id);
    }
    parts = number + 1;
    boolean started = false;
    try {
      THREADS.execute(() -> send(number, value));
      started = true;
    } finally {
      if (!started) { // there may be no room for another thread
        room.release();
      }
    }
  }

  private void send(int number, ByteBuffer value) {
    try {
      put(CommitKey.part(version, id, number), value);
      spare.add(ByteBuffer.wrap(value.array()));
    } catch (IOException | RuntimeException | Error error) {
      failure = error;
    } finally {
      room.release();
    }
  }

  @Override
  public ByteBuffer buffer(int capacity) {
    ByteBuffer buffer = spare.poll();
    return buffer == null || buffer.capacity() < capacity ? ByteBuffer.allocate(capacity) : buffer;
  }

  @Override
  public void head(ByteBuffer value) throws IOException {
    long started = System.nanoTime();
    await(AT_ONCE);
    room.release(AT_ONCE);
    headTried = true;
    put(key.bytes(), value);
    micros += (System.nanoTime() - started) / 1000;
  }

  /** Wait until fewer parts are under way, and take so much of the room; a part that failed is the end of the commit. */
  private void await(int permits) throws IOException {
    try {
      room.acquire(permits);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while parts of a commit are sent");
    }
    if (failure != null) {
      room.release(permits);
      if (failure instanceof OutOfMemoryError error) {
        throw error; // as the cause of another one it would be the end of the executor
      }
      throw new IOException("a part of the commit was not written: " + failure.getMessage(), failure);
    }
  }

  private void put(byte[] name, ByteBuffer value) throws IOException {
    AgentConnection.DoneReply done = agent.ask(connection -> connection.put(commits.group(), name, value));
    storeMicros.addAndGet(done.storeMicros());
    planned.addAndGet(done.planned());
    hits.addAndGet(done.hits());
    bytes.addAndGet(value.remaining());
  }

  @Override
  public void close() {
    if (parts == 0) {
      return;
    }
    commits.end(id);
    if (!headTried) {
      try {
        THREADS.execute(this::deleteParts);
      } catch (OutOfMemoryError error) { // there is no room for another thread
        warnOfParts(error);
      }
    }
  }

  private void deleteParts() {
    room.acquireUninterruptibly(AT_ONCE);
    List<byte[]> names = IntStream.range(0, parts).mapToObj(number -> CommitKey.part(version, id, number)).toList();
    try {
      agent.ask(connection -> connection.delete(commits.group(), names));
    } catch (IOException | RuntimeException error) {
      warnOfParts(error);
    }
  }

  private void warnOfParts(Throwable error) {
    LOG.warn("{} parts of an aborted commit stay in {} until their version goes", parts, commits.group(), error);
  }

  /** How many bytes were sent. */
  long bytes() {
    return bytes.get();
  }

  /** How long the task waited for that. */
  long micros() {
    return micros;
  }

  /** How long the store took, for values that were sent at the same time together. */
  long storeMicros() {
    return storeMicros.get();
  }

  /** How many files the store had planned for certain servers. */
  long planned() {
    return planned.get();
  }

  /** How many of these went there. */
  long hits() {
    return hits.get();
  }
}
