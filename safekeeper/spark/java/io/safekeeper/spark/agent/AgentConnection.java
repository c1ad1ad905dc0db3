package io.safekeeper.spark.agent;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import net.jpountz.xxhash.StreamingXXHash64;
import net.jpountz.xxhash.XXHashFactory;

/**
 * One connection to an agent, which carries one request at a time. {@code docs/agent.md} has the protocol.
 *
 * <p>After an {@link AgentException} the connection can be used further; after any other {@link IOException} it cannot.
 */
public final class AgentConnection implements Closeable {
  private static final int MARK = 0x31414b53; // "SKA1"
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
  private static final int ERROR = 127;

  private final SocketChannel channel;
  private final StreamingXXHash64 hash = XXHashFactory.fastestInstance().newStreamingHash64(0);
  private int request;

  /**
   * How long the agent took to make a write durable, in microseconds; how many files of the store were planned for
   * certain servers since the agent was asked last, and how many of these went there.
   */
  public record DoneReply(long storeMicros, int planned, int hits) {}

  private record Reply(int kind, ByteBuffer body) {}

  AgentConnection(Path socket) throws IOException {
    channel = SocketChannel.open(UnixDomainSocketAddress.of(socket));
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

  @Override
  public void close() throws IOException {
    channel.close();
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
    write(header.putLong(checksum(header, body)).flip());
    for (ByteBuffer part : body) {
      write(part);
    }
  }

  private Reply receive() throws IOException {
    ByteBuffer header = read(HEADER_BYTES);
    int mark = header.getInt();
    int kind = header.get();
    int answered = header.getInt();
    int length = header.getInt();
    if (mark != MARK || length < 0 || length > MAX_BODY_BYTES) {
      throw new IOException("the agent's answer is not of this protocol");
    }
    ByteBuffer body = read(length);
    if (header.getLong(HEADER_BYTES - 8) != checksum(header, body)) {
      throw new IOException("the agent's answer has a wrong checksum");
    }
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
    return new Reply(kind, body);
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

  /** In slices: the JDK copies each heap buffer to a direct one of its size and keeps that. */
  private void write(ByteBuffer buffer) throws IOException {
    int end = buffer.limit();
    while (buffer.position() < end) {
      buffer.limit(Math.min(end, buffer.position() + SLICE_BYTES));
      channel.write(buffer);
    }
  }

  private ByteBuffer read(int length) throws IOException {
    ByteBuffer buffer = body(length);
    while (buffer.position() < length) {
      buffer.limit(Math.min(length, buffer.position() + SLICE_BYTES));
      if (channel.read(buffer) < 0) {
        throw new EOFException("the agent closed the connection");
      }
    }
    return buffer.flip();
  }

  private static ByteBuffer body(int capacity) {
    return ByteBuffer.allocate(capacity).order(ByteOrder.LITTLE_ENDIAN);
  }

  private static void putBytes(ByteBuffer buffer, byte[] bytes) {
    buffer.putInt(bytes.length).put(bytes);
  }

  private static byte[] getBytes(ByteBuffer buffer) throws IOException {
    int length = buffer.getInt();
    if (length < 0 || length > buffer.remaining()) {
      throw new IOException("the agent's answer ends too soon");
    }
    byte[] bytes = new byte[length];
    buffer.get(bytes);
    return bytes;
  }
}
