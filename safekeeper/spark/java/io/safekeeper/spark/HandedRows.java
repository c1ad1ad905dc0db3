package io.safekeeper.spark;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/**
 * The rows that a store has handed out and that point into its pages. Only those of one thread do, the one that opened
 * the store: other threads get copies, since a row that one thread reads cannot be changed by another.
 *
 * <p>When the store is over, pages may be freed: until then each of these rows gets bytes of its own, on the heap, so
 * whoever reads a row too late reads what was there; whoever asks one of the store's iterators for another one gets an
 * exception. If another thread than theirs ends the store, the rows stay as they are, and the pages, too, while the
 * rows are read: {@link KeptRows#areRead}. There may have been many iterators: beyond the newest few a row gets its own
 * bytes at once, and is listed again when its iterator steps.
 */
final class HandedRows {
  private static final int LISTED = 64;

  private final Object lock;
  private final Thread home = Thread.currentThread();
  private final RowSource[] newest = new RowSource[LISTED];
  private final KeptRows kept = new KeptRows(home);
  private int next;
  private boolean over;

  /** Something whose rows point into pages. */
  abstract static class RowSource {
    private boolean listed;

    /** The rows that it points there, always the same ones. */
    abstract UnsafeRow[] rows();
  }

  /** Rows that may still be read, whoever has them; a store or a lock is not reached from here, so they can go. */
  static final class KeptRows {
    private final Thread home;
    private final List<WeakReference<UnsafeRow>> rows = new ArrayList<>();

    private KeptRows(Thread home) {
      this.home = home;
    }

    private synchronized void add(UnsafeRow[] some) {
      for (UnsafeRow row : some) {
        rows.add(new WeakReference<>(row));
      }
    }

    private synchronized boolean isEmpty() {
      return rows.isEmpty();
    }

    /**
     * After an end in another thread: whether a row that points into a page may still be read. Not if its thread is
     * gone, nor if nobody has the row any more, nor if it is its thread that asks: then it is not reading, and the row
     * gets its bytes.
     */
    synchronized boolean areRead() {
      if (Thread.currentThread() == home) {
        for (WeakReference<UnsafeRow> reference : rows) {
          UnsafeRow row = reference.get();
          if (row != null) {
            detach(row);
          }
        }
        rows.clear();
      }
      rows.removeIf(reference -> reference.get() == null);
      return home.isAlive() && !rows.isEmpty();
    }
  }

  /**
   * For rows of the thread that makes this.
   *
   * @param lock whoever looks into pages, or ends this, has it
   */
  HandedRows(Object lock) {
    this.lock = lock;
  }

  Object lock() {
    return lock;
  }

  /** Nothing points into a page any more, nor will: whoever would look into one must not. */
  void requireOpen() {
    if (over) {
      throw new IllegalStateException("the store is closed: what it showed cannot be read any more");
    }
  }

  boolean isOver() {
    return over;
  }

  /**
   * Before rows of {@code source} are pointed into a page: see that this is remembered. Return whether they may be handed
   * out; else another thread asks, and gets copies.
   */
  boolean use(RowSource source) {
    requireOpen();
    if (Thread.currentThread() != home) {
      return false;
    }
    if (!source.listed) {
      detach(newest[next]); // which there may be no memory for: then it stays listed
      newest[next] = source;
      next = (next + 1) % LISTED;
      source.listed = true;
    }
    return true;
  }

  /**
   * Nothing will be pointed into a page any more when this returns. Return whether no row points into one now; else the
   * pages are needed while {@link KeptRows#areRead}. A second time, what the first one had no memory for is done.
   */
  boolean end() {
    over = true;
    boolean ours = Thread.currentThread() == home;
    for (int i = 0; i < LISTED; i++) {
      if (ours) {
        detach(newest[i]);
      } else {
        keep(newest[i]);
      }
      newest[i] = null;
    }
    return kept.isEmpty();
  }

  /** The rows that were left as they are by an end in another thread. */
  KeptRows kept() {
    return kept;
  }

  private void keep(RowSource source) {
    if (source != null) {
      kept.add(source.rows());
      source.listed = false;
    }
  }

  private static void detach(RowSource source) {
    if (source != null) {
      for (UnsafeRow row : source.rows()) {
        detach(row);
      }
      source.listed = false;
    }
  }

  /** Let a row that points into a page point to a copy of its bytes. */
  private static void detach(UnsafeRow row) {
    if (row.getBaseObject() == null && row.getBaseOffset() != 0) {
      byte[] bytes = row.getBytes();
      row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
    }
  }
}
