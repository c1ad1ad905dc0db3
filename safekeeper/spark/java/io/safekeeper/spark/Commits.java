package io.safekeeper.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/** The commits of one store, in the backend: one group, a key for each commit and one for the checkpoint's location. */
final class Commits {
  private static final byte[] LOCATION = "location".getBytes(StandardCharsets.US_ASCII);
  private static final int DELETED_AT_ONCE = 1000;

  private final Agent agent;
  private final String group;

  /**
   * What a commit cost: the bytes sent, and the microseconds that the agent and the store took; and the files that were
   * planned for certain servers and that went there, as {@link AgentConnection.Done} tells.
   */
  record Cost(long bytes, long agentMicros, long storeMicros, long planned, long hits) {}

  /** Receives the records of commits in order, block by block. */
  interface Reader extends Frame.Sink {
    /** These were all records of this commit. */
    void end(CommitKey key, Frame.Head head);
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

  /** Write a commit's values, the head last; they are durable when this returns. */
  Cost write(CommitKey key, List<byte[]> values) throws IOException {
    long started = System.nanoTime();
    long bytes = 0;
    long store = 0;
    long planned = 0;
    long hits = 0;
    int head = values.size() - 1;
    for (int i = 0; i <= head; i++) {
      byte[] name = i < head ? key.part(i) : key.bytes();
      byte[] value = values.get(i);
      AgentConnection.Done done = agent.ask(connection -> connection.put(group, name, value));
      store += done.storeMicros();
      planned += done.planned();
      hits += done.hits();
      bytes += value.length;
    }
    return new Cost(bytes, (System.nanoTime() - started) / 1000 - store, store, planned, hits);
  }

  /** Read commits, in this order. One that is not there is a {@link MissingCommit}. */
  void read(List<CommitKey> chain, Reader reader) throws IOException {
    List<byte[]> names = chain.stream().map(CommitKey::bytes).toList();
    read(names, (index, value) -> {
      CommitKey key = chain.get(index);
      if (value == null) {
        throw new MissingCommit(key);
      }
      Frame.Head head = Frame.head(value);
      Frame.Decoder decoder = new Frame.Decoder(head.codec(), reader);
      readParts(key, head.parts(), decoder);
      if (decoder.head(value) != head.rawBytes() || head.version() != key.version()) {
        throw new IllegalStateException("the commit of " + key + " is not what its key says");
      }
      reader.end(key, head);
    });
  }

  private void readParts(CommitKey key, int parts, Frame.Decoder decoder) throws IOException {
    List<byte[]> names = IntStream.range(0, parts).mapToObj(key::part).toList();
    read(names, (index, value) -> {
      if (value == null) {
        throw new MissingCommit(key);
      }
      decoder.part(value);
    });
  }

  /** Read values in order, each once: what had come before an agent died is not asked for again. */
  private void read(List<byte[]> names, AgentConnection.Values values) throws IOException {
    int[] read = {0};
    while (read[0] < names.size()) {
      agent.ask(connection -> {
        connection.read(group, names.subList(read[0], names.size()), (index, value) -> {
          values.accept(read[0], value);
          read[0]++;
        });
        return null;
      });
    }
  }

  /** Delete what no load of the newest {@code retained} versions needs, if that is at least so many keys. */
  int deleteGarbage(int retained, long least) throws IOException {
    List<byte[]> garbage = history().garbage(retained);
    if (garbage.size() < least) {
      return 0;
    }
    for (int from = 0; from < garbage.size(); from += DELETED_AT_ONCE) {
      List<byte[]> some = garbage.subList(from, Math.min(garbage.size(), from + DELETED_AT_ONCE));
      agent.ask(connection -> connection.delete(group, some));
    }
    return garbage.size();
  }

  /** Where the checkpoint was when the first commit was made. */
  Optional<String> location() throws IOException {
    byte[][] found = {null};
    read(List.of(LOCATION), (index, value) -> found[0] = value);
    return Optional.ofNullable(found[0]).map(bytes -> new String(bytes, StandardCharsets.UTF_8));
  }

  void setLocation(String location) throws IOException {
    agent.ask(connection -> connection.put(group, LOCATION, location.getBytes(StandardCharsets.UTF_8)));
  }
}
