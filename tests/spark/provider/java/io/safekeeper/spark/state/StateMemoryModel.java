package io.safekeeper.spark.state;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.apache.spark.unsafe.Platform;

/** What tasks do to the memory of states, one after the other: what is interrupted, what is large, what has no room. */
public final class StateMemoryModel {
  private static final int LARGE_BYTES = StateMemory.PAGE_BYTES + 4096;

  private final StateMemory memory = new StateMemory(List.of(Path.of(System.getProperty("java.io.tmpdir"))));

  private StateMemoryModel() {}

  /** Each by itself, without a test around it. */
  public static void main(String[] args) throws IOException {
    interrupted();
    many();
    withoutRoom();
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
