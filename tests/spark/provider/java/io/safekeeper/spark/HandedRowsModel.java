package io.safekeeper.spark;

import java.lang.ref.Reference;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/** Rows that point into memory which is not the heap, handed out and ended without a store. */
public final class HandedRowsModel {
  private static final int BYTES = 16;

  private HandedRowsModel() {}

  /** A row, and how often there is no memory to copy it. */
  private static final class Source extends HandedRows.RowSource {
    private final UnsafeRow row = new UnsafeRow(1);
    private final long page = Platform.allocateMemory(BYTES);
    private int failures;

    Source(int number, int failures) {
      Platform.putLong(null, page, 0);
      Platform.putLong(null, page + 8, number);
      row.pointTo(null, page, BYTES);
      this.failures = failures;
    }

    @Override
    UnsafeRow[] rows() {
      if (failures-- > 0) {
        throw new OutOfMemoryError("no copy");
      }
      return new UnsafeRow[] {row};
    }

    boolean isDetached() {
      return row.getBaseObject() != null;
    }
  }

  /** End rows of which the second one cannot be copied at first; how many were copied after each of two ends. */
  public static String noMemoryToEnd() {
    HandedRows rows = new HandedRows(new Object());
    Source[] sources = {new Source(0, 0), new Source(1, 1), new Source(2, 0)};
    for (Source source : sources) {
      rows.use(source);
    }
    String first = ended(rows) + " " + copied(sources);
    return first + ", " + ended(rows) + " " + copied(sources);
  }

  /** So many sources that the oldest one is not listed any more, which cannot be copied at first. */
  public static String noMemoryToUse() {
    HandedRows rows = new HandedRows(new Object());
    Source oldest = new Source(0, 1);
    rows.use(oldest);
    int used = 1;
    try {
      for (; used < 1000; used++) {
        rows.use(new Source(used, 0));
      }
    } catch (OutOfMemoryError error) {
      return used + " " + ended(rows) + " " + oldest.isDetached();
    }
    throw new AssertionError("there was no error");
  }

  /** Rows that another thread has ended, and that nobody has but the lock, which is nobody's either. */
  public static boolean areKeptByNobody() throws Exception {
    BooleanSupplier areRead = endedElsewhere();
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
    while (elsewhere(areRead::getAsBoolean) && System.nanoTime() < deadline) {
      System.gc();
      Thread.sleep(10);
    }
    return elsewhere(areRead::getAsBoolean);
  }

  private static BooleanSupplier endedElsewhere() throws Exception {
    List<Source> store = new ArrayList<>();
    HandedRows rows = new HandedRows(store);
    store.add(new Source(0, 0));
    rows.use(store.get(0));
    if (elsewhere(rows::end) || !elsewhere(rows.kept()::areRead)) {
      throw new AssertionError("wrong: that the row is read while it is there");
    }
    Reference.reachabilityFence(store);
    return rows.kept()::areRead;
  }

  private static boolean elsewhere(Callable<Boolean> work) throws Exception {
    return TestProvider.inBackground(work).get();
  }

  private static String ended(HandedRows rows) {
    try {
      return String.valueOf(rows.end());
    } catch (OutOfMemoryError error) {
      return error.getMessage();
    }
  }

  private static int copied(Source[] sources) {
    int count = 0;
    for (Source source : sources) {
      count += source.isDetached() ? 1 : 0;
    }
    return count;
  }
}
