package io.safekeeper.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.IntStream;

/** The commits of one store, in the backend: one group, a key for each commit and one for the checkpoint's location. */
final class Commits {
  private static final byte[] LOCATION = "location".getBytes(StandardCharsets.US_ASCII);
  private static final int DELETED_AT_ONCE = 1000;

  private final Agent agent;
  private final String group;
  /** Held while the parts of a commit have no head yet, and while it is found out and deleted what nothing needs. */
  private final ReentrantLock unfinished = new ReentrantLock();

  /** Receives the records of commits in order, block by block. */
  interface Reader extends Frame.Sink {
    /** These were all records of this commit. */
    void end(CommitKey key, Frame.Head head);
  }

  /** Receives what is needed of a whole chain of commits. */
  interface Loader extends Reader {
    /** This is what the chain leads to, before anything else is known. */
    void begin(Frame.Head newest);
  }

  Commits(Agent agent, String group) {
    this.agent = agent;
    this.group = group;
  }

  String group() {
    return group;
  }

  /** How often the agent had to be started again since somebody asked. */
  int takeAgentRestarts() {
    return agent.takeRestarts();
  }

  History history() throws IOException {
    return new History(agent.ask(connection -> connection.keys(group)));
  }

  /**
   * Writes the values of a commit, each durable when its method returns, and counts what that costs. To be closed,
   * whether or not the head was written.
   */
  final class Writer implements Frame.Output, AutoCloseable {
    private final CommitKey key;
    private long bytes;
    private long micros;
    private long storeMicros;
    private long planned;
    private long hits;

    private Writer(CommitKey key) {
      this.key = key;
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
      AgentConnection.Done done = agent.ask(connection -> connection.put(group, name, value));
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

  Writer write(CommitKey key) {
    return new Writer(key);
  }

  /** Read commits, in this order. One that is not there is a {@link MissingCommit}. */
  void read(List<CommitKey> chain, Reader reader) throws IOException {
    read(chain, 0, reader);
  }

  /**
   * Read a whole chain of commits, oldest first. The newest one says which bytes of the oldest nothing needs: they are
   * left out.
   */
  void load(List<CommitKey> chain, Loader loader) throws IOException {
    int last = chain.size() - 1;
    CommitKey newest = chain.get(last);
    byte[][] value = {null};
    readInOrder(List.of(newest.bytes()), (index, found) -> value[0] = present(newest, found));
    Frame.Head head = Frame.head(value[0]);
    loader.begin(head);
    read(chain.subList(0, last), head.offset(), loader);
    decode(newest, value[0], last == 0 ? head.offset() : 0, loader);
  }

  private void read(List<CommitKey> chain, long skipped, Reader reader) throws IOException {
    List<byte[]> names = chain.stream().map(CommitKey::bytes).toList();
    readInOrder(names, (index, value) -> {
      CommitKey key = chain.get(index);
      decode(key, present(key, value), index == 0 ? skipped : 0, reader);
    });
  }

  private void decode(CommitKey key, byte[] value, long skipped, Reader reader) throws IOException {
    Frame.Head head = Frame.head(value);
    Frame.Decoder decoder = new Frame.Decoder(head.codec(), skipped, reader);
    List<byte[]> parts = IntStream.range(0, head.parts()).mapToObj(key::part).toList();
    readInOrder(parts, (index, part) -> decoder.part(present(key, part)));
    if (decoder.head(value) != head.rawBytes() || head.version() != key.version()) {
      throw new IllegalStateException("the commit of " + key + " is not what its key says");
    }
    reader.end(key, head);
  }

  private static byte[] present(CommitKey key, byte[] value) {
    if (value == null) {
      throw new MissingCommit(key);
    }
    return value;
  }

  private void readInOrder(List<byte[]> names, ReadAhead.Values values) throws IOException {
    ReadAhead.read(names, some -> agent.ask(connection -> connection.read(group, some)), values);
  }

  /** Delete what no load of the newest version or {@code retained} older ones needs, if that is so many keys. */
  int deleteGarbage(int retained, long least) throws IOException {
    unfinished.lock();
    try {
      List<byte[]> garbage = history().garbage(retained);
      if (garbage.size() < least) {
        return 0;
      }
      for (int from = 0; from < garbage.size(); from += DELETED_AT_ONCE) {
        List<byte[]> some = garbage.subList(from, Math.min(garbage.size(), from + DELETED_AT_ONCE));
        agent.ask(connection -> connection.delete(group, some));
      }
      return garbage.size();
    } finally {
      unfinished.unlock();
    }
  }

  /** Where the checkpoint was when the first commit was made. */
  Optional<String> location() throws IOException {
    byte[][] found = {null};
    readInOrder(List.of(LOCATION), (index, value) -> found[0] = value);
    return Optional.ofNullable(found[0]).map(bytes -> new String(bytes, StandardCharsets.UTF_8));
  }

  void setLocation(String location) throws IOException {
    ByteBuffer value = ByteBuffer.wrap(location.getBytes(StandardCharsets.UTF_8));
    agent.ask(connection -> connection.put(group, LOCATION, value));
  }
}
