package io.safekeeper.spark.commits;

import io.safekeeper.spark.state.Pages;
import io.safekeeper.spark.state.Record;
import io.safekeeper.spark.state.StateLog;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.spark.unsafe.Platform;

/** Makes the values of a commit from its records, as they come: a part as soon as it is full, the head at the end. */
final class CommitEncoder {
  private static final int BLOCK_BYTES = 256 << 10;
  private static final int SMALLEST_BUFFER = 64 << 10;

  private final BlockCodec codec;
  private final int limit;
  private final CommitOutput output;
  private ByteBuffer current; // a part begins in it where the rest of a head would
  private byte[] raw = new byte[0]; // a block before it is compressed: codecs take arrays
  private int parts;

  /**
   * @param limit the most bytes that a value may have
   * @param rawBytes about how many bytes of records there will be
   */
  CommitEncoder(BlockCodec codec, int limit, long rawBytes, CommitOutput output) {
    this.codec = codec;
    this.limit = limit;
    this.output = output;
    current = empty(ByteBuffer.allocate((int) Math.min(limit, SMALLEST_BUFFER + rawBytes / 4)));
  }

  private static ByteBuffer empty(ByteBuffer buffer) {
    return buffer.clear().order(ByteOrder.LITTLE_ENDIAN).position(CommitFormat.HEAD_BYTES);
  }

  /** Add the records that the walk goes over. */
  void add(Pages.Walk walk) throws IOException {
    int blockBytes = Math.min(BLOCK_BYTES, limit / 4);
    long from = 0;
    long to = 0;
    while (walk.next()) {
      if (walk.at() != to || to - from >= blockBytes) { // another page, or enough
        addBlock(from, (int) (to - from));
        from = walk.at();
      }
      to = walk.at() + Record.size(null, walk.at());
    }
    addBlock(from, (int) (to - from));
  }

  /** Add so many bytes of whole records, from where they are in memory. */
  private void addBlock(long from, int size) throws IOException {
    if (size == 0) {
      return;
    }
    int most = limit / 2;
    for (; size > most; size -= most, from += most) {
      addBlock(from, most, CommitFormat.GOES_ON);
    }
    addBlock(from, size, 0);
  }

  private void addBlock(long from, int size, int flag) throws IOException {
    int most = CommitFormat.BLOCK_HEADER_BYTES + codec.bound(size);
    if (most > limit - current.position() && current.position() > CommitFormat.HEAD_BYTES) {
      output.part(parts++, sealed(CommitFormat.PART_MARK, CommitFormat.HEAD_BYTES - CommitFormat.PART_BYTES));
      current = empty(output.buffer(limit));
    }
    if (most > current.remaining()) {
      ByteBuffer larger = ByteBuffer.allocate(Math.max(2 * current.capacity(), current.position() + most));
      current = larger.order(ByteOrder.LITTLE_ENDIAN).put(current.flip());
    }
    if (raw.length < size) {
      raw = new byte[size];
    }
    Platform.copyMemory(null, from, raw, Platform.BYTE_ARRAY_OFFSET, size);
    int at = current.position();
    int length = codec.compress(raw, 0, size, current.array(), at + CommitFormat.BLOCK_HEADER_BYTES);
    current.putInt(size | flag).putInt(length).position(at + CommitFormat.BLOCK_HEADER_BYTES + length);
  }

  /** All records were added: they are what the log has not committed yet. */
  void finish(StateLog log, long version) throws IOException {
    int end = current.position();
    current.position(CommitFormat.CHECKED_FROM);
    current.put(CommitFormat.FORMAT).put(codec.number).putShort(CommitFormat.FLAGS).putInt(parts);
    current.putLong(version).putLong(log.size()).putLong(log.oldestVersion(version)).putLong(log.startOffset());
    current.putLong(log.uncommittedBytes()).position(end);
    output.head(sealed(CommitFormat.HEAD_MARK, 0));
  }

  /** The bytes from {@code from} to the position, with mark and checksum. */
  private ByteBuffer sealed(int mark, int from) {
    int length = current.position() - from;
    long checksum = CommitFormat.checksum(current.array(), from, length);
    current.putInt(from, mark).putLong(from + 4, checksum);
    return ByteBuffer.wrap(current.array(), from, length);
  }
}
