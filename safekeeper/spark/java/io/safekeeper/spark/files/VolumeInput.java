package io.safekeeper.spark.files;

import io.safekeeper.spark.agent.AgentFiles;
import java.io.EOFException;
import java.io.IOException;
import java.util.Objects;
import java.util.zip.CRC32;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.Path;

/**
 * A file that is being read, one part in memory at a time. One that is replaced meanwhile is read to the end of the part
 * at hand, then it is an error.
 */
final class VolumeInput extends FSInputStream {
  private final AgentFiles files;
  private final Path path;
  private final String name;
  private final AgentFiles.FilePart first; // without its bytes
  private final CRC32 crc = new CRC32();
  private byte[] data;
  private int number; // of the part at hand
  private int checked; // so many parts have come in order
  private long at;

  VolumeInput(AgentFiles files, Path path, String name) throws IOException {
    this.files = files;
    this.path = path;
    this.name = name;
    AgentFiles.FilePart opened = VolumeErrors.of(path, () -> files.open(name));
    data = opened.data();
    first = new AgentFiles.FilePart(
        opened.modified(), opened.size(), opened.write(), opened.partBytes(), opened.crc(), null);
    check(0);
  }

  /** The checksum is that of all the content: it is known once all parts have come, one after the other. */
  private void check(int number) throws IOException {
    if (number != checked) {
      return;
    }
    crc.update(data);
    checked++;
    boolean isLast = start(number) + data.length == first.size();
    if (isLast && (int) crc.getValue() != first.crc()) {
      throw new IOException(path + " is damaged: its checksum does not match");
    }
  }

  private long start(int number) {
    return (long) number * first.partBytes();
  }

  @Override
  public synchronized int read() throws IOException {
    byte[] one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
  }

  @Override
  public synchronized int read(byte[] into, int offset, int length) throws IOException {
    requireOpen();
    Objects.checkFromIndexSize(offset, length, into.length);
    if (length == 0) {
      return 0;
    }
    if (at >= first.size()) {
      return -1;
    }
    load();
    int from = (int) (at - start(number));
    int some = Math.min(length, data.length - from);
    if (some <= 0) {
      throw new EOFException(path + " ends after " + (start(number) + data.length) + " of " + first.size() + " bytes");
    }
    System.arraycopy(data, from, into, offset, some);
    at += some;
    return some;
  }

  /** Have the part that the next byte is in. */
  private void load() throws IOException {
    boolean isHere = at >= start(number) && at < start(number) + data.length;
    if (!isHere) {
      int wanted = (int) (at / first.partBytes());
      data = VolumeErrors.of(path, () -> files.read(name, first.write(), wanted)).data();
      number = wanted;
      check(wanted);
    }
  }

  @Override
  public synchronized void seek(long to) throws IOException {
    requireOpen();
    if (to < 0 || to > first.size()) {
      throw new EOFException("there is no position " + to + " in " + path + ", which has " + first.size() + " bytes");
    }
    at = to;
  }

  @Override
  public synchronized long getPos() {
    return at;
  }

  @Override
  public synchronized int available() throws IOException {
    requireOpen();
    return (int) Math.min(Integer.MAX_VALUE, first.size() - at);
  }

  @Override
  public boolean seekToNewSource(long to) {
    return false;
  }

  @Override
  public synchronized void close() {
    data = null;
  }

  private void requireOpen() throws IOException {
    if (data == null) {
      throw new IOException(path + ": Stream is closed");
    }
  }
}
