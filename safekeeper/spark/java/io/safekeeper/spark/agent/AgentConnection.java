package io.safekeeper.spark.agent;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import net.jpountz.xxhash.StreamingXXHash64;
import net.jpountz.xxhash.XXHashFactory;

/**
 * One connection to an agent, which carries one request at a time. {@code docs/agent.md} has the protocol.
 *
 * <p>While a request gets on the agent says so every second. One that says nothing for long hangs: {@link SilentAgent}.
 *
 * <p>After an {@link AgentException} the connection can be used further; after any other {@link IOException} it cannot.
 */
public final class AgentConnection implements Closeable {
  /** The version of the protocol; the agent says which one it speaks when it is ready. */
  static final int VERSION = 3;

  private static final int MARK = 0x33414b53; // "SKA3"
  private static final int HEADER_BYTES = 21;
  private static final int MAX_BODY_BYTES = 65 << 20;
  private static final int SLICE_BYTES = 256 << 10;

  private static final int PUT = 1;
  private static final int DELETE = 2;
  private static final int KEYS = 3;
  private static final int READ = 4;
  private static final int DONE = 65;
  private static final int KEY_LIST = 66;
  private static final int VALUE = 67;
  private static final int ALIVE = 68;
  private static final int ERROR = 127;

  private final Path socket;
  private final SocketChannel channel;
  private final Selector selector;
  private final SelectionKey key;
  private final long silentMillis;
  private final ByteBuffer inbox = body(HEADER_BYTES); // the header of the next frame, as far as it is here
  private final StreamingXXHash64 hash = XXHashFactory.fastestInstance().newStreamingHash64(0);
  private int request;
  private int replies;
  private long moved;

  /**
   * How long the agent took to make a write durable, in microseconds; how many files of the store were planned for
   * certain servers since the agent was asked last, and how many of these went there.
   */
  public record DoneReply(long storeMicros, int planned, int hits) {}

  private record Reply(int kind, ByteBuffer body) {}

  /**
   * @param silentMillis for how long the agent may say nothing in the middle of a request
   */
  AgentConnection(Path socket, long silentMillis) throws IOException {
    this.socket = socket;
    this.silentMillis = silentMillis;
    channel = SocketChannel.open(UnixDomainSocketAddress.of(socket));
    try {
      channel.configureBlocking(false);
      selector = Selector.open();
    } catch (IOException error) {
      channel.close();
      throw error;
    }
    key = channel.register(selector, 0);
  }

  /** Where the agent listens that this is a connection to; no two agents listen at the same place. */
  Path socket() {
    return socket;
  }

  /** How many frames of the answer to the last request have come. */
  int replies() {
    return replies;
  }

  /** When something was last sent, or heard from the agent, in the time of {@link System#nanoTime}. */
  long moved() {
    return moved;
  }

  /** Set a key to a value; the value is durable when this returns. */
  public DoneReply put(String group, byte[] key, ByteBuffer value) throws IOException {
    ByteBuffer start = body(12 + 3 * group.length() + key.length);
    putBytes(start, group.getBytes(StandardCharsets.UTF_8));
    putBytes(start, key);
    send(PUT, start.putInt(value.remaining()).flip(), value.duplicate());
    return done(receive());
  }

  /** Delete keys; they are gone when this returns. A key that is not there is not an error. */
  public DoneReply delete(String group, List<byte[]> keys) throws IOException {
    send(DELETE, keysBody(group, keys));
    return done(receive());
  }

  public List<byte[]> keys(String group) throws IOException {
    ByteBuffer body = body(4 + 3 * group.length());
    putBytes(body, group.getBytes(StandardCharsets.UTF_8));
    send(KEYS, body.flip());
    List<byte[]> keys = new ArrayList<>();
    Reply reply = receive();
    for (; reply.kind == KEY_LIST; reply = receive()) {
      for (int count = reply.body.getInt(); count > 0; count--) {
        keys.add(getBytes(reply.body));
      }
    }
    done(reply);
    return keys;
  }

  /** The values of keys, in their order; null for a key that is not there. */
  public List<byte[]> read(String group, List<byte[]> keys) throws IOException {
    send(READ, keysBody(group, keys));
    List<byte[]> values = new ArrayList<>();
    Reply reply = receive();
    for (; reply.kind == VALUE; reply = receive()) {
      int index = reply.body.getInt();
      boolean found = reply.body.get() != 0;
      if (index != values.size()) {
        throw new IOException("the agent answered with value " + index + " instead of " + values.size());
      }
      values.add(found ? getBytes(reply.body) : null);
    }
    done(reply);
    if (values.size() != keys.size()) {
      throw new IOException("the agent answered with " + values.size() + " values instead of " + keys.size());
    }
    return values;
  }

  /** Send any request; the bodies of its replies, without the DONE. */
  List<ByteBuffer> exchange(int kind, ByteBuffer... body) throws IOException {
    send(kind, body);
    List<ByteBuffer> bodies = new ArrayList<>();
    Reply reply = receive();
    for (; reply.kind != DONE; reply = receive()) {
      bodies.add(reply.body);
    }
    done(reply);
    return bodies;
  }

  @Override
  public void close() throws IOException {
    try (selector) {
      channel.close();
    }
  }

  private static ByteBuffer keysBody(String group, List<byte[]> keys) {
    ByteBuffer body = body(8 + 3 * group.length() + keys.stream().mapToInt(key -> 4 + key.length).sum());
    putBytes(body, group.getBytes(StandardCharsets.UTF_8));
    body.putInt(keys.size());
    keys.forEach(key -> putBytes(body, key));
    return body.flip();
  }

  private void send(int kind, ByteBuffer... body) throws IOException {
    int length = 0;
    for (ByteBuffer part : body) {
      length += part.remaining();
    }
    ByteBuffer header = body(HEADER_BYTES).putInt(MARK).put((byte) kind).putInt(++request).putInt(length);
    replies = 0;
    moved = System.nanoTime();
    boolean sent = write(header.putLong(checksum(header, body)).flip());
    for (ByteBuffer part : body) {
      sent = sent && write(part); // an answer that comes before all is sent says what is wrong with the rest
    }
  }

  private Reply receive() throws IOException {
    while (!hasHeader()) {
      await(SelectionKey.OP_READ);
    }
    ByteBuffer header = inbox.flip();
    int kind = header.get(4);
    int answered = header.getInt(5);
    ByteBuffer body = read(header.getInt(9));
    check(header, body);
    inbox.clear();
    if (kind == ERROR) {
      AgentException.Code code = AgentException.Code.of(body.get());
      String message = new String(getBytes(body), StandardCharsets.UTF_8);
      if (code == AgentException.Code.BAD_FRAME) {
        close();
      }
      throw new AgentException(code, message);
    }
    if (answered != request) {
      throw new IOException("the agent answered request " + answered + " instead of " + request);
    }
    replies++;
    return new Reply(kind, body);
  }

  /** Take what has come of the next header. Return whether it is all here, and that of an answer. */
  private boolean hasHeader() throws IOException {
    while (inbox.hasRemaining()) {
      if (!read(inbox)) {
        return false;
      }
      if (!inbox.hasRemaining()) {
        int length = inbox.getInt(9);
        if (inbox.getInt(0) != MARK || length < 0 || length > MAX_BODY_BYTES) {
          throw new IOException("the agent's answer is not of this protocol");
        }
        if (inbox.get(4) == ALIVE) {
          check(inbox, body(0));
          inbox.clear();
        }
      }
    }
    return true;
  }

  private void check(ByteBuffer header, ByteBuffer body) throws IOException {
    if (header.getLong(HEADER_BYTES - 8) != checksum(header, body)) {
      throw new IOException("the agent's answer has a wrong checksum");
    }
  }

  private static DoneReply done(Reply reply) throws IOException {
    if (reply.kind != DONE) {
      throw new IOException("the agent answered with a frame of kind " + reply.kind);
    }
    ByteBuffer body = reply.body;
    long storeMicros = body.getLong();
    body.getLong(); // the time of the sync, which the JVM does not show
    return new DoneReply(storeMicros, body.getInt(), body.getInt());
  }

  /** The checksum over kind, request, length and body. */
  private long checksum(ByteBuffer header, ByteBuffer... body) {
    hash.reset();
    hash.update(header.array(), 4, HEADER_BYTES - 12);
    for (ByteBuffer part : body) {
      hash.update(part.array(), part.arrayOffset() + part.position(), part.remaining());
    }
    return hash.getValue();
  }

  /**
   * Send what is in a buffer; return false, with a part of it unsent, if the agent answers before. It may not take any
   * more for a while, and says meanwhile that it is alive.
   *
   * <p>In slices: the JDK copies each heap buffer to a direct one of its size and keeps that.
   */
  private boolean write(ByteBuffer buffer) throws IOException {
    int end = buffer.limit();
    while (buffer.position() < end) {
      buffer.limit(Math.min(end, buffer.position() + SLICE_BYTES));
      if (channel.write(buffer) > 0) {
        moved = System.nanoTime();
      } else if (hasHeader()) {
        return false;
      } else {
        await(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
      }
    }
    return true;
  }

  private ByteBuffer read(int length) throws IOException {
    ByteBuffer buffer = body(length);
    while (buffer.position() < length) {
      buffer.limit(Math.min(length, buffer.position() + SLICE_BYTES));
      if (!read(buffer)) {
        await(SelectionKey.OP_READ);
      }
    }
    return buffer.flip();
  }

  /** Take what is here; return whether anything was. */
  private boolean read(ByteBuffer buffer) throws IOException {
    int count = channel.read(buffer);
    if (count < 0) {
      throw new EOFException("the agent closed the connection");
    }
    if (count > 0) {
      moved = System.nanoTime();
    }
    return count > 0;
  }

  /** Wait until the channel is ready for one of these operations. */
  private void await(int operations) throws IOException {
    long left = silentMillis - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - moved);
    key.interestOps(operations);
    // Look once more before it counts as silent: it may be this JVM that was stopped for so long.
    if (selector.select(Math.max(left, 1)) == 0 && isSilent() && selector.selectNow() == 0) {
      throw new SilentAgent(silentMillis);
    }
    selector.selectedKeys().clear();
    if (Thread.currentThread().isInterrupted()) {
      throw new InterruptedIOException("interrupted while waiting for the agent");
    }
  }

  private boolean isSilent() {
    return System.nanoTime() - moved >= TimeUnit.MILLISECONDS.toNanos(silentMillis);
  }

  static ByteBuffer body(int capacity) {
    return ByteBuffer.allocate(capacity).order(ByteOrder.LITTLE_ENDIAN);
  }

  static void putBytes(ByteBuffer buffer, byte[] bytes) {
    buffer.putInt(bytes.length).put(bytes);
  }

  static byte[] getBytes(ByteBuffer buffer) throws IOException {
    int length = buffer.getInt();
    if (length < 0 || length > buffer.remaining()) {
      throw new IOException("the agent's answer ends too soon");
    }
    byte[] bytes = new byte[length];
    buffer.get(bytes);
    return bytes;
  }
}
