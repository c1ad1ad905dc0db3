package io.safekeeper.spark.state;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.apache.spark.unsafe.Platform;

/** What tasks do to the memory of states, one after the other: what is interrupted, what is large, what has no room. */
public final class StateMemoryModel {
  private static final int LARGE_BYTES = StateMemory.PAGE_BYTES + 4096;

  private final StateMemory memory;

  private StateMemoryModel(List<Path> folders) {
    memory = new StateMemory(folders);
  }

  private StateMemoryModel() {
    this(List.of(Path.of(System.getProperty("java.io.tmpdir"))));
  }

  /** What takes a JVM of its own: {@code folders} and some of them, of which the first is full, or {@code unmapped}. */
  public static void main(String[] args) throws Exception {
    if (args[0].equals("folders")) {
      folders(Stream.of(args).skip(1).map(Path::of).toList());
    } else {
      unmapped();
    }
    System.out.println("done");
  }

  /** Of two folders one is full: it is tried, and the other one is taken, whose turn it ever is and whoever asks too. */
  private static void folders(List<Path> folders) throws Exception {
    for (int before = 0; before < 4; before++) { // large pages that shift whose turn it is
      StateMemoryModel model = new StateMemoryModel(folders);
      List<Long> large = new ArrayList<>();
      for (int i = 0; i < before; i++) {
        large.add(model.page(LARGE_BYTES));
      }
      List<Long> pages = new ArrayList<>();
      for (int i = 0; i < 300; i++) {
        pages.add(model.page(StateMemory.PAGE_BYTES));
      }
      for (long page : pages) {
        check(Platform.getLong(null, page + StateMemory.PAGE_BYTES - 8) == page, "what is in a page");
        model.memory.freePage(page, StateMemory.PAGE_BYTES);
      }
      large.forEach(page -> model.memory.freePage(page, LARGE_BYTES));
      model.checkFreed();
    }
    StateMemoryModel model = new StateMemoryModel(folders);
    List<Callable<Boolean>> askers = Collections.nCopies(4, () -> {
      for (int i = 0; i < 50; i++) {
        model.memory.freePage(model.page(LARGE_BYTES), LARGE_BYTES);
      }
      return true;
    });
    ExecutorService threads = Executors.newFixedThreadPool(askers.size());
    for (Future<Boolean> asked : threads.invokeAll(askers)) {
      asked.get();
    }
    threads.shutdown();
    model.checkFreed();
  }

  /** This process gets no more addresses than for another slab: the one after it is refused, with a sentence. */
  private static void unmapped() throws Exception {
    StateMemoryModel model = new StateMemoryModel();
    long first = model.page(StateMemory.PAGE_BYTES); // before: what is loaded for it takes addresses, too
    limitAddresses(124 << 20);
    int pages = 1;
    try {
      while (pages < 1000) {
        model.page(StateMemory.PAGE_BYTES);
        pages++;
      }
    } catch (StateMemoryError error) {
      System.out.println(error.getMessage());
    }
    check(pages >= 128 && pages < 384, "how many pages there were: " + pages);
    model.memory.freePage(first, StateMemory.PAGE_BYTES);
    check(model.page(StateMemory.PAGE_BYTES) == first, "a page that was given back");
    try {
      model.memory.allocate(1L << 30);
    } catch (StateMemoryError error) {
      System.out.println(error.getMessage());
    }
    try {
      new StateMemoryModel(List.of(Path.of("/nothing/here"))).page(StateMemory.PAGE_BYTES);
    } catch (StateMemoryError error) {
      System.out.println(error.getMessage());
    }
  }

  private static void limitAddresses(long more) throws Exception {
    String size = Files.readAllLines(Path.of("/proc/self/status")).stream()
        .filter(line -> line.startsWith("VmSize:")).findFirst().orElseThrow().replaceAll("\\D", "");
    long limit = (Long.parseLong(size) << 10) + more;
    long pid = ProcessHandle.current().pid();
    int ended = new ProcessBuilder("prlimit", "--pid", "" + pid, "--as=" + limit).inheritIO().start().waitFor();
    check(ended == 0, "whether there is a limit");
  }

  /** A task that is killed is interrupted: neither it nor those who have pages of the same file notice. */
  public static void interrupted() {
    StateMemoryModel model = new StateMemoryModel();
    long first;
    long second;
    try {
      Thread.currentThread().interrupt(); // before the file is mapped
      first = model.page(StateMemory.PAGE_BYTES);
      check(Thread.interrupted(), "whether the thread is interrupted");
      Thread.currentThread().interrupt(); // before a page gets its room
      second = model.page(StateMemory.PAGE_BYTES);
    } finally {
      check(Thread.interrupted(), "whether the thread is still interrupted");
    }
    long third = model.page(StateMemory.PAGE_BYTES);
    check(second == first + StateMemory.PAGE_BYTES && third == second + StateMemory.PAGE_BYTES, "pages of one file");
    for (long page : new long[] {first, second, third}) {
      model.memory.freePage(page, StateMemory.PAGE_BYTES);
    }
    model.checkFreed();
  }

  /** Records that are larger than a page have files of their own, and take no descriptors. */
  public static void many() throws IOException {
    StateMemoryModel model = new StateMemoryModel();
    long before = openFiles();
    List<Long> pages = new ArrayList<>();
    for (int i = 0; i < 20; i++) {
      pages.add(model.page(LARGE_BYTES));
    }
    check(openFiles() <= before, "open files: " + openFiles() + " after " + before);
    for (long page : pages) {
      check(Platform.getLong(null, page + LARGE_BYTES - 8) == page, "what is in a page");
      model.memory.freePage(page, LARGE_BYTES);
    }
    model.checkFreed();
  }

  /** A log that there is no room for leaves nothing. */
  public static void withoutRoom() {
    StateMemoryModel model = new StateMemoryModel();
    int refused = 0;
    for (long budget = 1 << 10; budget < 64 << 10; budget += 1 << 10) {
      model.memory.setBudget(budget);
      try {
        StateLog log = new StateLog(model.memory, 3, 1);
        check(log.names().isEmpty(), "names");
        log.close();
      } catch (StateMemoryError error) {
        refused++;
      }
      model.checkFreed();
    }
    check(refused > 16 && refused < 32, "how often there was no room: " + refused);
  }

  private long page(int bytes) {
    long page = memory.allocatePage(bytes);
    Platform.putLong(null, page + bytes - 8, page);
    return page;
  }

  private static long openFiles() throws IOException {
    try (Stream<Path> open = Files.list(Path.of("/proc/self/fd"))) {
      return open.filter(StateMemoryModel::isOfState).count();
    }
  }

  private static boolean isOfState(Path descriptor) {
    try {
      return Files.readSymbolicLink(descriptor).toString().contains("safekeeper-state-");
    } catch (IOException error) {
      return false; // closed meanwhile
    }
  }

  private void checkFreed() {
    check(memory.memoryBytes() == 0 && memory.diskBytes() == 0, "what was not freed: " + memory.memoryBytes());
  }

  private static void check(boolean condition, String what) {
    if (!condition) {
      throw new AssertionError(what);
    }
  }
}
