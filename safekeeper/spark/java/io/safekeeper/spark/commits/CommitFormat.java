package io.safekeeper.spark.commits;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import net.jpountz.xxhash.XXHashFactory;

/**
 * What a commit is in the store: the records appended since the one before, in compressed blocks. {@link CommitEncoder}
 * writes it.
 *
 * <pre>
 * head:    "SKC1" | xxh64 u64 | format u8 | codec u8 | flags u16 | parts u32 | version u64 | live u64 | oldest u64
 *          | offset u64 | raw u64 | block...
 * part:    "SKP1" | xxh64 u64 | block...
 * block:   raw length u32 | compressed length u32 | compressed bytes
 * </pre>
 *
 * <p>Little endian. A checksum covers everything after itself. A block holds whole records, or with the highest bit
 * of its raw length set, the beginning of one that the next block goes on with. What does not fit into one value of
 * the store goes into parts, which come before the blocks of the head; the head is written last and says how many
 * there are. {@code live} is the number of keys after the commit; {@code oldest} and {@code offset} say where the
 * oldest record that is needed lies: so many raw bytes into the commit of that version. Flag 1: the records' numbers
 * are big endian. Frozen: another layout is another format.
 */
final class CommitFormat {
  static final int HEAD_MARK = 0x31434b53; // "SKC1"
  static final int PART_MARK = 0x31504b53; // "SKP1"
  static final byte FORMAT = 1;
  private static final short BIG_ENDIAN = 1;
  static final short FLAGS = ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN ? BIG_ENDIAN : 0;
  static final int CHECKED_FROM = 12;
  static final int HEAD_BYTES = 60;
  static final int PART_BYTES = CHECKED_FROM;
  static final int BLOCK_HEADER_BYTES = 8;
  static final int GOES_ON = 1 << 31;

  private CommitFormat() {}

  /** What the head says; the blocks are not looked at. */
  static CommitHead head(byte[] value) {
    ByteBuffer head = check(value, HEAD_MARK, HEAD_BYTES);
    byte format = head.get();
    if (format != FORMAT) {
      throw new IllegalStateException("a commit has the format " + format + ": it was written by a later version");
    }
    BlockCodec codec = BlockCodec.of(head.get());
    if (head.getShort() != FLAGS) {
      throw new IllegalStateException("a commit was written on a machine with another byte order");
    }
    return new CommitHead(
        codec, head.getInt(), head.getLong(), head.getLong(), head.getLong(), head.getLong(), head.getLong());
  }

  private static ByteBuffer check(byte[] value, int mark, int least) {
    ByteBuffer buffer = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
    if (value.length < least || buffer.getInt() != mark || buffer.getLong() != checksum(value, 0, value.length)) {
      throw new IllegalStateException("a commit's bytes are damaged: mark or checksum do not match");
    }
    return buffer;
  }

  static long checksum(byte[] bytes, int from, int length) {
    return XXHashFactory.fastestInstance().hash64().hash(bytes, from + CHECKED_FROM, length - CHECKED_FROM, 0);
  }

  /** Takes the values of a commit, the parts before the head, and hands their records to a sink. */
  static final class Decoder {
    private final BlockCodec codec;
    private final long skipped;
    private final RecordSink sink;
    private byte[] records = new byte[0];
    private int begun; // bytes of a record that goes on in the next block
    private long bytes;

    /** The sink does not get the first {@code skipped} bytes, which are whole records. */
    Decoder(BlockCodec codec, long skipped, RecordSink sink) {
      this.codec = codec;
      this.skipped = skipped;
      this.sink = sink;
    }

    void part(byte[] value) {
      check(value, PART_MARK, PART_BYTES);
      readBlocks(value, PART_BYTES);
    }

    /** The head's own blocks; return how many bytes of records the commit had. */
    long head(byte[] value) {
      readBlocks(value, HEAD_BYTES);
      return bytes;
    }

    private void readBlocks(byte[] value, int at) {
      ByteBuffer blocks = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).position(at);
      while (blocks.hasRemaining()) {
        int word = blocks.getInt();
        int compressed = blocks.getInt();
        readBlock(value, blocks.position(), compressed, word & ~GOES_ON, (word & GOES_ON) != 0);
        blocks.position(blocks.position() + compressed);
      }
    }

    private void readBlock(byte[] value, int at, int compressed, int length, boolean goesOn) {
      bytes += length;
      if (bytes <= skipped) {
        return;
      }
      int end = Math.addExact(begun, length);
      if (records.length < end) {
        records = Arrays.copyOf(records, Math.max(end, Math.min(2 * begun, Integer.MAX_VALUE - 16)));
      }
      codec.decompress(value, at, compressed, records, begun, length);
      begun = goesOn ? end : 0;
      if (!goesOn) {
        sink.records(records, (int) Math.max(0, skipped - (bytes - end)), end);
      }
    }
  }
}
