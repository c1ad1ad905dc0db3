package io.safekeeper.spark.state;

import java.util.ArrayList;
import java.util.List;

/**
 * What a load of the log must replay: everything from the start, the oldest record that may be some key's newest, to
 * the end. Reading a commit costs something however small it is, so each weighs at least {@code leastWeight}.
 */
final class Extent {
  private final int leastWeight;
  private final List<Span> spans = new ArrayList<>(); // commits in order, perhaps some that are no longer needed
  private int needed; // the first of them that is
  private long weight; // of all commits there ever were
  private long start;
  private long startAppended;

  /** One commit's records: where they begin, the bytes appended before them, and the weight of all before them. */
  private record Span(long version, long position, long appended, long weightBefore) {}

  Extent(int leastWeight, long start) {
    this.leastWeight = leastWeight;
    this.start = start;
  }

  long start() {
    return start;
  }

  /** How many bytes had been appended before the start. */
  long startAppended() {
    return startAppended;
  }

  /** The weight of a commit of so many bytes. */
  long weigh(long bytes) {
    return Math.max(leastWeight, bytes);
  }

  /** What a load has to replay. */
  long weight() {
    return weight - weightBeforeStart();
  }

  private long weightBeforeStart() {
    if (needed == spans.size()) {
      return weight;
    }
    long before = spans.get(needed).weightBefore;
    long oldest = (needed + 1 < spans.size() ? spans.get(needed + 1).weightBefore : weight) - before;
    return before + oldest - weigh(oldest - startOffset());
  }

  /** The oldest version that a load of {@code newest} reads. */
  long oldestVersion(long newest) {
    return needed < spans.size() ? spans.get(needed).version : newest;
  }

  /** How many bytes of the oldest version lie before the start. */
  long startOffset() {
    return needed < spans.size() ? startAppended - spans.get(needed).appended : 0;
  }

  /** The bytes that had been appended before a place in the commit of some version, or the start if that is later. */
  long appendedBefore(long version, long offset) {
    return spans.stream()
        .skip(needed)
        .filter(span -> span.version == version)
        .mapToLong(span -> Math.max(startAppended, span.appended + offset))
        .findFirst()
        .orElse(startAppended);
  }

  /** The records from {@code position} on were a commit. */
  void add(long version, long position, long appendedBefore, long bytes) {
    spans.add(new Span(version, position, appendedBefore, weight));
    weight += weigh(bytes);
  }

  /** So many bytes from the start are needed no more; the next record is at {@code position}. */
  void advance(long position, long bytes) {
    start = position;
    startAppended += bytes;
    while (needed + 1 < spans.size() && spans.get(needed + 1).position <= start) {
      needed++;
    }
  }

  /** All records up to {@code position}, the end of the last commit, are needed no more. */
  void advanceToEnd(long position, long appended) {
    start = position;
    startAppended = appended;
    needed = spans.size();
  }

  /** Go back to how it was at a savepoint. */
  void undo(Savepoint savepoint) {
    while (!spans.isEmpty() && spans.get(spans.size() - 1).version > savepoint.version()) {
      weight = spans.remove(spans.size() - 1).weightBefore;
    }
    start = savepoint.start();
    startAppended = savepoint.startAppended();
    needed = spans.size();
    while (needed > 0 && (needed == spans.size() ? savepoint.position() : spans.get(needed).position) > start) {
      needed--;
    }
  }

  /** Nothing before {@code position} will be gone back to. */
  void forgetBefore(long position) {
    while (needed > 0 && spans.size() > 1 && spans.get(1).position <= position) {
      spans.remove(0);
      needed--;
    }
  }
}
