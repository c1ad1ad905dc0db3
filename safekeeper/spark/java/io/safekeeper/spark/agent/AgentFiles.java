package io.safekeeper.spark.agent;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The requests about files. A path is {@code VOLUME/NAME/...}; how it is stored is the agent's business.
 *
 * <p>A write has a name of 16 bytes that its writer made: the first 6 are the milliseconds since 1970, the others are
 * random. Whatever was asked may be asked again with it.
 */
public final class AgentFiles {
  /** The length of the name of a write. */
  public static final int WRITE_BYTES = 16;

  private static final int STAT = 5;
  private static final int LIST = 6;
  private static final int READ_FILE = 7;
  private static final int WRITE_PART = 8;
  private static final int WRITE_FILE = 9;
  private static final int DISCARD = 10;
  private static final int MAKE_DIRECTORY = 11;
  private static final int REMOVE = 12;
  private static final int CREATE = 1;
  private static final int AGAIN = 2;
  private static final byte[] WHICHEVER = new byte[WRITE_BYTES];

  private final Agent agent;

  /** A file or a directory, by its last name. */
  public record FileDetails(String name, boolean isDirectory, long modified, long size) {}

  /** A part of a file, and what is known of the whole. */
  public record FilePart(long modified, long size, byte[] write, int partBytes, int crc, byte[] data) {}

  public AgentFiles(Agent agent) {
    this.agent = agent;
  }

  /** Who sees what the backend writes: PROCESS, HOST or NETWORK. */
  public String scope() throws IOException {
    return agent.scope();
  }

  public FileDetails stat(String path) throws IOException {
    List<FileDetails> found = statuses(agent.ask(connection -> connection.exchange(STAT, start(path, 0).flip())));
    if (found.size() != 1) {
      throw new IOException("the agent answered with " + found.size() + " files instead of one");
    }
    return found.get(0);
  }

  /** What is in a directory. */
  public List<FileDetails> list(String path) throws IOException {
    return statuses(agent.ask(connection -> connection.exchange(LIST, start(path, 0).flip())));
  }

  /** The first part of whatever file is there. */
  public FilePart open(String path) throws IOException {
    return read(path, WHICHEVER, 0);
  }

  /** Another part of the same file. */
  public FilePart read(String path, byte[] write, int number) throws IOException {
    List<ByteBuffer> found = agent.ask(connection ->
        connection.exchange(READ_FILE, start(path, WRITE_BYTES + 4).put(write).putInt(number).flip()));
    if (found.size() != 1) {
      throw new IOException("the agent answered with " + found.size() + " parts instead of one");
    }
    ByteBuffer body = found.get(0);
    long modified = body.getLong();
    long size = body.getLong();
    byte[] name = new byte[WRITE_BYTES];
    body.get(name);
    return new FilePart(modified, size, name, body.getInt(), body.getInt(), AgentConnection.getBytes(body));
  }

  /** Store a part, before the file is written that it is for. */
  public void writePart(String path, byte[] write, int number, ByteBuffer data) throws IOException {
    agent.ask(connection -> connection.exchange(
        WRITE_PART,
        start(path, WRITE_BYTES + 8).put(write).putInt(number).putInt(data.remaining()).flip(),
        data.duplicate()));
  }

  /**
   * Let a file stand; all its parts but the last one are stored.
   *
   * @param create whether it is an error if something is there
   * @param size how long the file is
   * @param crc the CRC-32 of all of it
   */
  public void writeFile(
      String path, boolean create, byte[] write, long size, int partBytes, int crc, ByteBuffer last)
      throws IOException {
    AtomicBoolean again = new AtomicBoolean();
    agent.ask(connection -> {
      int flags = (create ? CREATE : 0) | (again.getAndSet(true) ? AGAIN : 0);
      ByteBuffer start = start(path, 1 + WRITE_BYTES + 20).put((byte) flags).put(write);
      start.putLong(size).putInt(partBytes).putInt(crc).putInt(last.remaining());
      return connection.exchange(WRITE_FILE, start.flip(), last.duplicate());
    });
  }

  /** Delete the first parts of a write that is given up. */
  public void discard(String path, byte[] write, int count) throws IOException {
    agent.ask(connection ->
        connection.exchange(DISCARD, start(path, WRITE_BYTES + 4).put(write).putInt(count).flip()));
  }

  public void makeDirectory(String path) throws IOException {
    agent.ask(connection -> connection.exchange(MAKE_DIRECTORY, start(path, 0).flip()));
  }

  public void remove(String path, boolean recursive) throws IOException {
    agent.ask(connection ->
        connection.exchange(REMOVE, start(path, 1).put((byte) (recursive ? 1 : 0)).flip()));
  }

  /** The beginning of a body, with room for more. */
  private static ByteBuffer start(String path, int more) {
    byte[] bytes = path.getBytes(StandardCharsets.UTF_8);
    ByteBuffer body = AgentConnection.body(4 + bytes.length + more);
    AgentConnection.putBytes(body, bytes);
    return body;
  }

  private static List<FileDetails> statuses(List<ByteBuffer> bodies) throws IOException {
    List<FileDetails> found = new ArrayList<>();
    for (ByteBuffer body : bodies) {
      for (int count = body.getInt(); count > 0; count--) {
        String name = new String(AgentConnection.getBytes(body), StandardCharsets.UTF_8);
        found.add(new FileDetails(name, body.get() != 0, body.getLong(), body.getLong()));
      }
    }
    return found;
  }
}
