package io.safekeeper.spark.state;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.spark.unsafe.Platform;

/**
 * The memory of all states in this JVM, none of it on the heap.
 *
 * <p>Pages of the usual size lie in files that are mapped ({@link MappedSlab}): the kernel may write them to the disk
 * and take their memory, so they do not count. All else, indexes and small pages, stays in memory: that counts, and is
 * refused beyond the budget.
 *
 * <p>Whoever frees something must know that nobody can point to it any more. With the system property
 * {@value #POISON} whatever is freed is overwritten, so that a late reader shows.
 */
public final class StateMemory {
  /** Set to {@code true} to overwrite what is freed. */
  public static final String POISON = "safekeeper.poison";

  static final int PAGE_BYTES = 1 << 19;

  private static final int SLAB_PAGES = 128;
  private static final int HEAP_SHARE = 4; // how much of the heap all loads may read ahead: one in so many bytes
  private static final byte POISONED = (byte) 0xa5;
  private static final Map<List<Path>, StateMemory> SHARED = new ConcurrentHashMap<>();

  private final List<Path> folders;
  private final boolean poisons = Boolean.getBoolean(POISON);
  private final TreeMap<Long, MappedSlab> slabs = new TreeMap<>(); // by address; both under this object's lock
  private int turn; // of the folders
  private final AtomicLong memory = new AtomicLong();
  private final AtomicLong disk = new AtomicLong();
  private final AtomicLong ahead = new AtomicLong(); // what loads read before they need it
  private volatile long budget = Long.MAX_VALUE;

  StateMemory(List<Path> folders) {
    this.folders = folders.stream().distinct().toList();
  }

  /** The memory whose files are in these folders, one for all states. */
  public static StateMemory in(List<Path> folders) {
    return SHARED.computeIfAbsent(List.copyOf(folders), StateMemory::new);
  }

  /** How many bytes may stay in memory. What is there already stays. */
  public void setBudget(long bytes) {
    budget = bytes;
  }

  public long budget() {
    return budget;
  }

  /** How many bytes stay in memory. */
  public long memoryBytes() {
    return memory.get();
  }

  /** How many bytes lie in files; the kernel has as many of them in memory as it can. */
  public long diskBytes() {
    return disk.get();
  }

  /**
   * Take so many bytes of the heap for values of a store that are read before they are needed, unless the indexes need
   * the budget or others read so much already; return whether. {@link #endReadAhead} gives them back.
   */
  public boolean readAhead(long bytes) {
    long most = Math.min(Runtime.getRuntime().maxMemory() / HEAP_SHARE, budget - memory.get());
    if (ahead.addAndGet(bytes) <= most) {
      return true;
    }
    ahead.addAndGet(-bytes);
    return false;
  }

  public void endReadAhead(long bytes) {
    ahead.addAndGet(-bytes);
  }

  /** Memory that stays in memory, full of zeros. */
  long allocate(long bytes) {
    long now = memory.addAndGet(bytes);
    if (now > budget) {
      memory.addAndGet(-bytes);
      String says = "the indexes of all states in this executor have " + (now - bytes >> 20) + " MB, of " + (budget >> 20)
          + " MB that they may have: raise spark.sql.streaming.stateStore.safekeeper.memoryBytes if the executor has more"
          + " memory, or use more executors";
      throw new StateMemoryError(says, bytes, Math.max(0, budget - (now - bytes)));
    }
    try {
      long address = Platform.allocateMemory(bytes);
      Platform.setMemory(address, (byte) 0, bytes);
      return address;
    } catch (OutOfMemoryError error) {
      memory.addAndGet(-bytes);
      String says = "the operating system gives this process no memory outside the heap beyond " + (now - bytes >> 20)
          + " MB for indexes: give the executors more (ulimit -v, spark.executor.memoryOverhead), or use more of them";
      throw new StateMemoryError(says, bytes, 0);
    }
  }

  void free(long address, long bytes) {
    poison(address, bytes);
    memory.addAndGet(-bytes);
    Platform.freeMemory(address);
  }

  /** Whether pages of that size stay in memory. */
  static boolean isSmall(int bytes) {
    return bytes < PAGE_BYTES;
  }

  /** A page; what is in it is not said. */
  long allocatePage(int bytes) {
    if (isSmall(bytes)) {
      return allocate(bytes);
    }
    Map<Path, FolderError> failed = new LinkedHashMap<>();
    while (failed.size() < folders.size()) {
      try {
        long page = takePage(bytes, failed.keySet());
        disk.addAndGet(bytes);
        return page;
      } catch (FolderError error) {
        failed.put(error.folder, error); // there may be room in another one
      } catch (MappedSlab.UnmappedFile error) {
        throw new StateMemoryError(error.getMessage(), bytes, 0);
      }
    }
    throw new StateMemoryError(noRoom(failed.values()), bytes, 0);
  }

  private String noRoom(Collection<FolderError> failed) {
    String reasons = failed.stream().map(Throwable::getMessage).distinct().collect(Collectors.joining("; "));
    return failed.stream().anyMatch(error -> error.hasFile)
        ? "there is no room for it in Spark's local folders " + folders + " (" + reasons
            + "): make room there, or set spark.local.dir to a larger disk"
        : "no file can be made for it in Spark's local folders " + folders + " (" + reasons
            + "): mend that, or set spark.local.dir to folders that can be written to";
  }

  /** A folder in which there is no file, or no room, to be had. */
  private static final class FolderError extends Exception {
    private static final long serialVersionUID = 1L;
    private final transient Path folder;
    private final boolean hasFile;

    FolderError(Path folder, boolean hasFile, IOException cause) {
      super(cause.getMessage(), cause);
      this.folder = folder;
      this.hasFile = hasFile;
    }
  }

  void freePage(long page, int bytes) {
    if (isSmall(bytes)) {
      free(page, bytes);
      return;
    }
    poison(page, bytes);
    disk.addAndGet(-bytes);
    giveBack(page);
  }

  private long takePage(int bytes, Set<Path> failed) throws FolderError, MappedSlab.UnmappedFile {
    MappedSlab slab;
    long page;
    synchronized (this) {
      slab = slabWithRoom(bytes, failed);
      page = slab.take();
      if (slab.isFilled(page)) {
        return page;
      }
    }
    try {
      slab.fill(page);
    } catch (IOException error) {
      synchronized (this) {
        slab.setFullDisk();
      }
      giveBack(page);
      throw new FolderError(slab.folder, true, error);
    }
    synchronized (this) {
      slab.setFilled(page);
    }
    return page;
  }

  /** A slab that has a page left, a new one in none of the folders that have failed; there is another one. */
  private MappedSlab slabWithRoom(int bytes, Set<Path> failed) throws FolderError, MappedSlab.UnmappedFile {
    if (bytes == PAGE_BYTES) {
      for (MappedSlab slab : slabs.values()) {
        if (slab.pageBytes() == bytes && slab.hasRoom()) {
          return slab;
        }
      }
    }
    Path folder = nextFolder();
    while (failed.contains(folder)) {
      folder = nextFolder();
    }
    try {
      MappedSlab slab = new MappedSlab(folder, bytes, bytes == PAGE_BYTES ? SLAB_PAGES : 1);
      slabs.put(slab.address, slab);
      return slab;
    } catch (MappedSlab.UnmappedFile error) {
      throw error;
    } catch (IOException error) {
      throw new FolderError(folder, false, error);
    }
  }

  private Path nextFolder() {
    return folders.get(Math.floorMod(turn++, folders.size()));
  }

  private void giveBack(long page) {
    MappedSlab unused = null;
    synchronized (this) {
      MappedSlab slab = slabs.floorEntry(page).getValue();
      slab.giveBack(page);
      if (slab.isEmpty()) {
        slabs.remove(slab.address);
        unused = slab;
      }
    }
    if (unused != null) {
      unused.close();
    }
  }

  private void poison(long address, long bytes) {
    if (poisons) {
      Platform.setMemory(address, POISONED, bytes);
    }
  }
}
