package io.safekeeper.spark.state;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.BitSet;
import java.util.UUID;
import org.apache.arrow.memory.util.MemoryUtil;
import org.apache.spark.storage.StorageUtils;

/**
 * Some pages of one size in a file of their own, which has no name any more: whatever happens to the process, the disk
 * gets it back. The kernel keeps what fits in memory and writes the rest to the disk.
 *
 * <p>A page's room on the disk is made by writing zeros before the page is first used, so a full disk is an
 * {@link IOException} here and not a signal when the page is written to. When all pages have theirs the file is closed;
 * the mapping stays.
 *
 * <p>Tasks are interrupted, and an interrupt closes a {@link FileChannel} under all who use it. So there is one only while
 * the file is mapped.
 */
final class MappedSlab {
  private static final byte[] ZEROS = new byte[64 << 10];

  private final RandomAccessFile file; // its own lock is for its position
  private final MappedByteBuffer mapping;
  private final int pageBytes;
  private final int pages;
  private final BitSet used = new BitSet();
  private final BitSet filled = new BitSet(); // those whose room on the disk is there
  private boolean grows = true; // until there is no room on the disk for the next
  final Path folder;
  final long address;

  MappedSlab(Path folder, int pageBytes, int pages) throws IOException {
    this.folder = folder;
    this.pageBytes = pageBytes;
    this.pages = pages;
    Path path = folder.resolve("safekeeper-state-" + UUID.randomUUID());
    file = new RandomAccessFile(path.toFile(), "rw");
    try {
      mapping = map(path, (long) pageBytes * pages);
      address = addressOf(mapping);
    } catch (IOException | OutOfMemoryError error) { // the latter if there is no room for it among the addresses
      file.close();
      throw notMapped(error);
    } catch (IllegalStateException error) {
      file.close();
      throw error;
    } finally {
      Files.deleteIfExists(path);
    }
  }

  /** Map a file, whether or not this thread is interrupted, now or meanwhile. */
  private static MappedByteBuffer map(Path path, long bytes) throws IOException {
    boolean interrupted = false;
    try {
      while (true) {
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
          return channel.map(FileChannel.MapMode.READ_WRITE, 0, bytes);
        } catch (ClosedByInterruptException error) {
          interrupted |= Thread.interrupted();
        }
      }
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** What to say if there is a file and it cannot be mapped: no other folder would help. */
  private IOException notMapped(Throwable error) {
    String says = "a file of " + ((long) pageBytes * pages >> 20) + " MB cannot be mapped into this process's memory ("
        + error.getMessage() + "): the executors need more mappings (vm.max_map_count), addresses (ulimit -v) or open files"
        + " (ulimit -n)";
    return new UnmappedFile(says, error);
  }

  /** There is a file, and it cannot be mapped. */
  static final class UnmappedFile extends IOException {
    private static final long serialVersionUID = 1L;

    private UnmappedFile(String message, Throwable cause) {
      super(message, cause);
    }
  }

  /** Where a mapping is. Java does not say; Arrow, which comes with Spark and has the same need, does. */
  private static long addressOf(MappedByteBuffer mapping) {
    try {
      return MemoryUtil.getByteBufferAddress(mapping);
    } catch (UnsupportedOperationException | LinkageError error) {
      StorageUtils.dispose(mapping);
      throw new IllegalStateException(
          "this JVM does not show where memory is: Spark starts it with --add-opens=java.base/java.nio=ALL-UNNAMED", error);
    }
  }

  int pageBytes() {
    return pageBytes;
  }

  boolean hasRoom() {
    return used.cardinality() < (grows ? pages : filled.cardinality());
  }

  boolean isEmpty() {
    return used.isEmpty();
  }

  /** Take a page that nobody has; {@link #fill} it before it is written to. */
  long take() {
    int page = used.nextClearBit(0);
    while (!grows && !filled.get(page)) {
      page = used.nextClearBit(page + 1);
    }
    used.set(page);
    return address + (long) page * pageBytes;
  }

  void giveBack(long page) {
    used.clear(number(page));
  }

  /** Whether the page has its room on the disk. */
  boolean isFilled(long page) {
    return filled.get(number(page));
  }

  /** Make room on the disk for a page; whoever has taken the page is the only one. */
  void fill(long page) throws IOException {
    synchronized (file) {
      file.seek(page - address);
      for (int left = pageBytes; left > 0; left -= ZEROS.length) {
        file.write(ZEROS, 0, Math.min(left, ZEROS.length));
      }
    }
  }

  void setFilled(long page) {
    filled.set(number(page));
    if (filled.cardinality() == pages) {
      closeFile();
    }
  }

  /** The disk has no room for more pages: those that are there are all. */
  void setFullDisk() {
    grows = false;
  }

  /** Unmap it, and give its room on the disk back. Nobody may have a page of it. */
  void close() {
    StorageUtils.dispose(mapping);
    closeFile();
  }

  /** Close the file; a second time, nothing happens. */
  private void closeFile() {
    try {
      file.close();
    } catch (IOException error) {
      throw new IllegalStateException("a file without a name cannot be closed", error);
    }
  }

  private int number(long page) {
    return (int) ((page - address) / pageBytes);
  }
}
