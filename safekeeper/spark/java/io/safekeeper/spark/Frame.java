package io.safekeeper.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import net.jpountz.xxhash.XXHashFactory;

/**
 * What a commit is in the store: the records appended since the one before, in compressed blocks.
 *
 * <pre>
 * head:    "SKC1" | xxh64 u64 | format u8 | codec u8 | flags u16 | parts u32 | version u64 | live u64 | oldest u64
 *          | offset u64 | raw u64 | block...
 * part:    "SKP1" | xxh64 u64 | block...
 * block:   raw length u32 | compressed length u32 | compressed bytes
 * </pre>
 *
 * <p>Little endian. A checksum covers everything after itself. A block holds whole records. What does not fit into one
 * value of the store goes into parts, which come before the blocks of the head; the head is written last and says how
 * many there are. {@code live} is the number of keys after the commit; {@code oldest} and {@code offset} say where the
 * oldest record that is needed lies: so many raw bytes into the commit of that version. Flag 1: the records' numbers
 * are big endian. Frozen: another layout is another format.
 */
final class Frame {
  private static final int HEAD_MARK = 0x31434b53; // "SKC1"
  private static final int PART_MARK = 0x31504b53; // "SKP1"
  private static final byte FORMAT = 1;
  private static final short BIG_ENDIAN = 1;
  private static final short FLAGS = ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN ? BIG_ENDIAN : 0;
  private static final int CHECKED_FROM = 12;
  private static final int HEAD_BYTES = 60;
  private static final int PART_BYTES = CHECKED_FROM;
  private static final int BLOCK_HEAD_BYTES = 8;
  private static final int BLOCK_BYTES = 256 << 10;

  private Frame() {}

  /** What a frame's head says. */
  record Head(Codec codec, int parts, long version, long live, long oldest, long offset, long rawBytes) {}

  /** Receives the records of a frame, block by block. */
  interface Sink {
    void records(byte[] bytes, int from, int to);
  }

  /**
   * The values to store for what the log has not committed yet: parts, and the head as the last one.
   *
   * @param limit the most bytes that a value may have; a single record above it cannot be written
   */
  static List<byte[]> encode(StateLog log, long version, Codec codec, int limit) {
    Encoder encoder = new Encoder(codec, limit);
    Pages.Walk walk = log.uncommitted();
    int blockBytes = Math.min(BLOCK_BYTES, limit / 4);
    byte[] page = null;
    int from = 0;
    int to = 0;
    while (walk.next()) {
      if (walk.page() != page || to - from >= blockBytes) {
        encoder.addBlock(page, from, to);
        page = walk.page();
        from = walk.offset();
      }
      to = walk.offset() + Record.size(page, walk.offset());
    }
    encoder.addBlock(page, from, to);
    return encoder.finish(version, log.size(), log.oldestVersion(version), log.headOffset(), log.uncommittedBytes());
  }

  /** What the head says; the blocks are not looked at. */
  static Head head(byte[] value) {
    ByteBuffer head = check(value, HEAD_MARK, HEAD_BYTES);
    byte format = head.get();
    if (format != FORMAT) {
      throw new IllegalStateException("a commit has the format " + format + ": it was written by a later version");
    }
    Codec codec = Codec.of(head.get());
    if (head.getShort() != FLAGS) {
      throw new IllegalStateException("a commit was written on a machine with another byte order");
    }
    return new Head(
        codec, head.getInt(), head.getLong(), head.getLong(), head.getLong(), head.getLong(), head.getLong());
  }

  /** Hand the records of a part to {@code sink}; return how many bytes there were. */
  static long readPart(byte[] value, Codec codec, Sink sink) {
    check(value, PART_MARK, PART_BYTES);
    return readBlocks(value, PART_BYTES, codec, sink);
  }

  /** Hand the records that the head itself holds to {@code sink}; return how many bytes there were. */
  static long readHead(byte[] value, Codec codec, Sink sink) {
    return readBlocks(value, HEAD_BYTES, codec, sink);
  }

  private static long readBlocks(byte[] value, int at, Codec codec, Sink sink) {
    ByteBuffer blocks = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).position(at);
    byte[] records = new byte[0];
    long total = 0;
    while (blocks.hasRemaining()) {
      int raw = blocks.getInt();
      int compressed = blocks.getInt();
      if (records.length < raw) {
        records = new byte[raw];
      }
      codec.decompress(value, blocks.position(), compressed, records, raw);
      blocks.position(blocks.position() + compressed);
      sink.records(records, 0, raw);
      total += raw;
    }
    return total;
  }

  private static ByteBuffer check(byte[] value, int mark, int least) {
    ByteBuffer buffer = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
    if (value.length < least || buffer.getInt() != mark || buffer.getLong() != checksum(value)) {
      throw new IllegalStateException("a commit's bytes are damaged: mark or checksum do not match");
    }
    return buffer;
  }

  private static long checksum(byte[] value) {
    return XXHashFactory.fastestInstance().hash64().hash(value, CHECKED_FROM, value.length - CHECKED_FROM, 0);
  }

  /** Collects blocks into values. */
  private static final class Encoder {
    private final Codec codec;
    private final int limit;
    private final List<byte[]> parts = new ArrayList<>();
    private ByteBuffer current = ByteBuffer.allocate(64 << 10).order(ByteOrder.LITTLE_ENDIAN).position(HEAD_BYTES);

    Encoder(Codec codec, int limit) {
      this.codec = codec;
      this.limit = limit;
    }

    void addBlock(byte[] page, int from, int to) {
      if (from == to) {
        return;
      }
      int most = BLOCK_HEAD_BYTES + codec.bound(to - from);
      if (most > limit - current.position() && current.position() > HEAD_BYTES) {
        parts.add(seal(current, PART_MARK, HEAD_BYTES - PART_BYTES));
        current.position(HEAD_BYTES);
      }
      if (most > current.remaining()) {
        ByteBuffer larger = ByteBuffer.allocate(Math.max(2 * current.capacity(), current.position() + most));
        current = larger.order(ByteOrder.LITTLE_ENDIAN).put(current.flip());
      }
      int at = current.position();
      int length = codec.compress(page, from, to - from, current.array(), at + BLOCK_HEAD_BYTES);
      current.putInt(to - from).putInt(length).position(at + BLOCK_HEAD_BYTES + length);
      if (current.position() > limit) {
        throw new IllegalStateException("a key with its value has over " + limit + " bytes: no store keeps that");
      }
    }

    List<byte[]> finish(long version, long live, long oldest, long offset, long rawBytes) {
      int end = current.position();
      current.position(CHECKED_FROM);
      current.put(FORMAT).put(codec.number).putShort(FLAGS).putInt(parts.size());
      current.putLong(version).putLong(live).putLong(oldest).putLong(offset).putLong(rawBytes).position(end);
      parts.add(seal(current, HEAD_MARK, 0));
      return parts;
    }

    /** The bytes from {@code from} to the position, with mark and checksum. */
    private static byte[] seal(ByteBuffer buffer, int mark, int from) {
      byte[] value = new byte[buffer.position() - from];
      System.arraycopy(buffer.array(), from, value, 0, value.length);
      ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).putInt(mark).putLong(checksum(value));
      return value;
    }
  }
}
