package io.safekeeper.spark;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/**
 * The rows that a store has handed out and that point into its pages.
 *
 * <p>When the store is over, pages may be freed: until then each of these rows gets bytes of its own, on the heap, so
 * whoever reads a row too late reads what was there; whoever asks one of the store's iterators for another one gets an
 * exception. There may have been many iterators: beyond the newest few a row gets its own bytes at once, and is listed
 * again when its iterator steps.
 */
final class HandedRows {
  private static final int LISTED = 64;

  private final RowSource[] newest = new RowSource[LISTED];
  private int next;
  private volatile boolean over;

  /** Something whose rows point into pages. */
  abstract static class RowSource {
    private boolean listed;

    /** Let the rows point to bytes of their own. */
    abstract void detach();
  }

  /** Before rows of {@code source} are pointed into a page: see that this is remembered. */
  void use(RowSource source) {
    if (over) {
      throw new IllegalStateException("the store is closed: what it showed cannot be read any more");
    }
    if (!source.listed) {
      RowSource oldest = newest[next];
      newest[next] = source;
      next = (next + 1) % LISTED;
      source.listed = true;
      detach(oldest);
    }
  }

  /** No row points into a page when this returns, and none will. A second time, nothing happens. */
  void end() {
    over = true;
    for (int i = 0; i < LISTED; i++) {
      detach(newest[i]);
      newest[i] = null;
    }
  }

  private static void detach(RowSource source) {
    if (source != null) {
      source.listed = false;
      source.detach();
    }
  }

  /** Let a row that points into a page point to a copy of its bytes. */
  static void detach(UnsafeRow row) {
    if (row.getBaseObject() == null && row.getBaseOffset() != 0) {
      byte[] bytes = row.getBytes();
      row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
    }
  }
}
