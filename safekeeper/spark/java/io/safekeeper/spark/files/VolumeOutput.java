package io.safekeeper.spark.files;

import io.safekeeper.spark.agent.AgentFiles;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.security.SecureRandom;
import java.util.Arrays;
import java.util.zip.CRC32;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A file that is being written. It is there, whole and durable, when this was closed; until then nobody sees it. What is
 * discarded, and what a write has failed for, leaves nothing. One part is in memory at a time.
 */
final class VolumeOutput extends OutputStream {
  /** How large a part is. */
  static final int PART_BYTES = 16 << 20;

  private static final Logger LOG = LoggerFactory.getLogger(VolumeOutput.class);
  private static final SecureRandom RANDOM = new SecureRandom();
  private static final int FIRST_BYTES = 8 << 10;

  private final AgentFiles files;
  private final Path path;
  private final String name;
  private final boolean create;
  private final byte[] write = newWrite();
  private final CRC32 crc = new CRC32();
  private byte[] buffer = new byte[FIRST_BYTES];
  private int filled;
  private int parts; // that are stored
  private boolean open = true;
  private boolean failed; // a write did not take all that it was given: it will never be a whole file

  /**
   * @param name the path as the agent knows it
   * @param create whether it is an error if there is something
   */
  VolumeOutput(AgentFiles files, Path path, String name, boolean create) {
    this.files = files;
    this.path = path;
    this.name = name;
    this.create = create;
  }

  private static byte[] newWrite() {
    byte[] random = new byte[AgentFiles.WRITE_BYTES - 6];
    RANDOM.nextBytes(random);
    ByteBuffer name = ByteBuffer.allocate(2 + AgentFiles.WRITE_BYTES).putLong(System.currentTimeMillis()).put(random);
    return Arrays.copyOfRange(name.array(), 2, name.capacity()); // the first two bytes are zero for long
  }

  @Override
  public void write(int value) throws IOException {
    write(new byte[] {(byte) value}, 0, 1);
  }

  @Override
  public void write(byte[] bytes, int offset, int length) throws IOException {
    if (!open) {
      throw new IOException(path + " is closed");
    }
    boolean before = failed;
    failed = true; // until all of it is taken
    crc.update(bytes, offset, length);
    int at = offset;
    for (int left = length; left > 0; ) {
      if (filled == PART_BYTES) {
        storePart();
      }
      int some = Math.min(left, PART_BYTES - filled);
      makeRoom(some);
      System.arraycopy(bytes, at, buffer, filled, some);
      filled += some;
      at += some;
      left -= some;
    }
    failed = before;
  }

  private void makeRoom(int more) {
    if (filled + more > buffer.length) {
      buffer = Arrays.copyOf(buffer, Math.min(PART_BYTES, Math.max(2 * buffer.length, filled + more)));
    }
  }

  private void storePart() throws IOException {
    VolumeErrors.of(path, () -> files.writePart(name, write, parts, ByteBuffer.wrap(buffer, 0, filled)));
    parts++;
    filled = 0;
  }

  @Override
  public void close() throws IOException {
    if (!open) {
      return;
    }
    if (failed) {
      parts++; // the last one may be there, too
      discard();
      throw new IOException(path + ": a write to it has failed, so it is not stored: write it again");
    }
    open = false;
    long size = (long) parts * PART_BYTES + filled;
    ByteBuffer last = ByteBuffer.wrap(buffer, 0, filled);
    try {
      VolumeErrors.of(path, () ->
          files.writeFile(name, create, write, size, PART_BYTES, (int) crc.getValue(), last));
    } catch (FileAlreadyExistsException error) {
      parts++; // the last one may be there, too
      deleteParts();
      throw error;
    } finally {
      buffer = null;
    }
  }

  /** Leave nothing. */
  void discard() {
    if (open) {
      open = false;
      buffer = null;
      deleteParts();
    }
  }

  private void deleteParts() {
    if (parts > 0) {
      try {
        files.discard(name, write, parts);
      } catch (IOException error) {
        LOG.info("What was written of {} stays behind until it is swept: {}", path, error.toString());
      }
    }
  }
}
