package io.safekeeper.spark.commits;

import io.safekeeper.spark.agent.Agent;
import io.safekeeper.spark.state.StateMemory;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntPredicate;

/** The commits of one store, in the backend: one group, a key for each commit and one for the checkpoint's location. */
public final class Commits {
  private static final byte[] LOCATION = "location".getBytes(StandardCharsets.US_ASCII);
  private static final int DELETED_AT_ONCE = 1000;

  private final Agent agent;
  private final String group;
  private final Set<String> unfinished = new HashSet<>(); // the ids of commits whose parts have no head yet
  private final Set<String> ended = new HashSet<>(); // those of them that came to their end while garbage is collected
  private boolean collecting;
  private final AtomicInteger written = new AtomicInteger(); // commits since the last listing for garbage
  private final ReadAhead.ReadRoom room;
  private int readsAtOnce;
  private int garbageLeft = Integer.MAX_VALUE; // by the last listing; before the first one nobody knows

  /** What is read ahead counts in {@code memory}. */
  public Commits(Agent agent, String group, StateMemory memory) {
    this.agent = agent;
    this.group = group;
    this.room = new ReadAhead.ReadRoom() {
      @Override
      public boolean take(long bytes) {
        return memory.readAhead(bytes);
      }

      @Override
      public void giveBack(long bytes) {
        memory.endReadAhead(bytes);
      }
    };
  }

  public String group() {
    return group;
  }

  /** How often the agent had to be started again since somebody asked. */
  int takeAgentRestarts() {
    return agent.takeRestarts();
  }

  public History history() throws IOException {
    return new History(agent.ask(connection -> connection.keys(group)));
  }

  CommitWriter write(long version, String id) {
    written.incrementAndGet();
    return new CommitWriter(agent, this, version, id);
  }

  /** From now on there are parts of that commit, and perhaps no head. */
  synchronized void begin(String id) {
    unfinished.add(id);
  }

  /** That commit has a head, or needs no parts any more. */
  synchronized void end(String id) {
    if (collecting) {
      ended.add(id); // the keys may have been listed before its head was there
    } else {
      unfinished.remove(id);
    }
  }

  private synchronized boolean setCollecting(boolean starts) {
    if (starts && collecting) {
      return false;
    }
    collecting = starts;
    if (!starts) {
      unfinished.removeAll(ended);
      ended.clear();
    }
    return true;
  }

  private synchronized boolean isUnfinished(String id) {
    return unfinished.contains(id);
  }

  /** Read commits, in this order. One that is not there is a {@link MissingCommit}. */
  public void read(List<CommitKey> chain, History history, CommitReader reader) throws IOException {
    ValuesOfChain values = new ValuesOfChain(history, reader, this::read);
    chain.forEach(values::add);
    read(values);
  }

  /**
   * Read a whole chain of commits, oldest first. The newest one says which bytes of the oldest nothing needs: they are
   * left out.
   */
  void load(List<CommitKey> chain, History history, ChainReader loader) throws IOException {
    int last = chain.size() - 1;
    CommitKey newest = chain.get(last);
    byte[][] value = {null};
    readInOrder(List.of(newest.bytes()), index -> false, (index, found) -> value[0] = present(newest, found));
    CommitHead head = CommitFormat.head(value[0]);
    loader.begin(head);
    ValuesOfChain values = new ValuesOfChain(history, loader, this::read);
    values.skip(head.offset());
    chain.subList(0, last).forEach(values::add);
    values.addRead(newest, value[0]);
    read(values);
  }

  private void read(ValuesOfChain values) throws IOException {
    readsAtOnce = readInOrder(values.names(), values::isPart, values);
    values.end();
  }

  /** How many requests for values of commits were under way at once in the last load. */
  int readsAtOnce() {
    return readsAtOnce;
  }

  static byte[] present(CommitKey key, byte[] value) {
    if (value == null) {
      throw new MissingCommit(key);
    }
    return value;
  }

  private int readInOrder(List<byte[]> names, IntPredicate large, ReadAhead.ValueSink values) throws IOException {
    return ReadAhead.read(names, large, this::read, room, values);
  }

  private List<byte[]> read(List<byte[]> names) throws IOException {
    return agent.ask(connection -> connection.read(group, names));
  }

  /**
   * Delete what no load of the newest version or {@code retained} older ones needs, if that is so many keys. Listing the
   * keys costs time, and money in some stores: that is left out until there were enough commits for it.
   */
  public int deleteGarbage(int retained, long least) throws IOException {
    if (!setCollecting(true)) {
      return 0; // somebody else does it
    }
    try {
      int fresh = written.get();
      if ((long) garbageLeft + fresh < Math.max(1, least)) {
        return 0;
      }
      List<byte[]> garbage = history().garbage(retained, this::isUnfinished);
      written.addAndGet(-fresh);
      garbageLeft = garbage.size();
      if (garbage.size() < least) {
        return 0;
      }
      for (int from = 0; from < garbage.size(); from += DELETED_AT_ONCE) {
        List<byte[]> some = garbage.subList(from, Math.min(garbage.size(), from + DELETED_AT_ONCE));
        agent.ask(connection -> connection.delete(group, some));
      }
      garbageLeft = 0;
      return garbage.size();
    } finally {
      setCollecting(false);
    }
  }

  /** Where the checkpoint was when the first commit was made. */
  public Optional<String> location() throws IOException {
    byte[][] found = {null};
    readInOrder(List.of(LOCATION), index -> false, (index, value) -> found[0] = value);
    return Optional.ofNullable(found[0]).map(bytes -> new String(bytes, StandardCharsets.UTF_8));
  }

  public void setLocation(String location) throws IOException {
    ByteBuffer value = ByteBuffer.wrap(location.getBytes(StandardCharsets.UTF_8));
    agent.ask(connection -> connection.put(group, LOCATION, value));
  }
}
