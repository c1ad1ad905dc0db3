package io.safekeeper.spark.commits;

import io.safekeeper.spark.agent.Agent;
import io.safekeeper.spark.agent.AgentConnection;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Writes the values of a commit, each durable when its method returns, and counts what that costs. To be closed,
 * whether or not the head was written.
 */
final class CommitWriter implements CommitFormat.Output, AutoCloseable {
  private final Agent agent;
  private final String group;
  private final CommitKey key;
  private final ReentrantLock unfinished;
  private long bytes;
  private long micros;
  private long storeMicros;
  private long planned;
  private long hits;

  /**
   * @param unfinished held from the first part until this is closed
   */
  CommitWriter(Agent agent, String group, CommitKey key, ReentrantLock unfinished) {
    this.agent = agent;
    this.group = group;
    this.key = key;
    this.unfinished = unfinished;
  }

  @Override
  public void part(int number, ByteBuffer value) throws IOException {
    if (!unfinished.isHeldByCurrentThread()) {
      unfinished.lock();
    }
    put(key.part(number), value);
  }

  @Override
  public void head(ByteBuffer value) throws IOException {
    put(key.bytes(), value);
  }

  private void put(byte[] name, ByteBuffer value) throws IOException {
    long started = System.nanoTime();
    AgentConnection.DoneReply done = agent.ask(connection -> connection.put(group, name, value));
    storeMicros += done.storeMicros();
    planned += done.planned();
    hits += done.hits();
    micros += (System.nanoTime() - started) / 1000;
    bytes += value.remaining();
  }

  @Override
  public void close() {
    if (unfinished.isHeldByCurrentThread()) {
      unfinished.unlock();
    }
  }

  /** How many bytes were sent. */
  long bytes() {
    return bytes;
  }

  /** How long that took altogether. */
  long micros() {
    return micros;
  }

  /** How much of it the store took. */
  long storeMicros() {
    return storeMicros;
  }

  /** How many files the store had planned for certain servers. */
  long planned() {
    return planned;
  }

  /** How many of these went there. */
  long hits() {
    return hits;
  }
}
