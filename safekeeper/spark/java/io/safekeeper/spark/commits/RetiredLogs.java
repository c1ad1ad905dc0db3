package io.safekeeper.spark.commits;

import io.safekeeper.spark.state.StateLog;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;

/** States of a partition that were given up, until their memory can be freed: when nothing points into it any more. */
public final class RetiredLogs {
  private final List<StateLog> logs = new ArrayList<>(4); // has room at once: memory may be what there is none of
  private final List<BooleanSupplier> readers = new ArrayList<>(4);

  RetiredLogs() {}

  synchronized void add(StateLog log) {
    logs.add(log);
  }

  /** Nothing is to be freed while this says that rows are still read. */
  synchronized void keepWhile(BooleanSupplier areRead) {
    readers.add(areRead);
  }

  synchronized boolean areRead() {
    readers.removeIf(reader -> !reader.getAsBoolean());
    return !readers.isEmpty();
  }

  /** Free them unless they are read; return whether there are none any more. */
  public synchronized boolean free() {
    if (areRead()) {
      return false;
    }
    logs.forEach(StateLog::close);
    logs.clear();
    return true;
  }
}
