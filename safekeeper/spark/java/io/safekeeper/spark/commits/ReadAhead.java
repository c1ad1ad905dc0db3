package io.safekeeper.spark.commits;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.IntPredicate;

/**
 * Reads values in order, and the next ones already while the last are being worked on.
 *
 * <p>A few requests are under way at a time, each for as many values as may have {@link #REQUEST_BYTES} by what was seen
 * so far, or for one that is known to be large; so that is about what is in memory for each. The request that is waited
 * for needs no leave; those ahead of it are made while the {@link ReadRoom} has some for them. Every request takes all
 * of its answer at once, whether or not it is its turn: nobody waits in the agent for memory that is held by answers
 * nobody takes.
 */
final class ReadAhead {
  private static final int REQUESTS = 4;
  private static final int REQUEST_BYTES = 4 << 20;
  private static final int MOST_VALUES = 64;
  private static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
    Thread thread = new Thread(work, "safekeeper-read");
    thread.setDaemon(true);
    return thread;
  });

  private final List<byte[]> names;
  private final IntPredicate large;
  private final ValueSource source;
  private final ReadRoom room;
  private final ArrayDeque<ReadRequest> requests = new ArrayDeque<>();
  private int requested;
  private int most; // requests that were under way at once
  private long largest = REQUEST_BYTES; // of the values lately; nothing is known of the first
  private long largestPart = 4L * REQUEST_BYTES; // of those that are known to be large

  private ReadAhead(List<byte[]> names, IntPredicate large, ValueSource source, ReadRoom room) {
    this.names = names;
    this.large = large;
    this.source = source;
    this.room = room;
  }

  /** Reads some values, in the order of their names. */
  interface ValueSource {
    List<byte[]> read(List<byte[]> names) throws IOException;
  }

  /** Receives values in order; null for one that is not there. */
  interface ValueSink {
    void accept(int index, byte[] value) throws IOException;
  }

  /** Says whether there is memory to read so much before it is needed. */
  interface ReadRoom {
    boolean take(long bytes);

    void giveBack(long bytes);
  }

  private record ReadRequest(Future<List<byte[]>> answer, boolean large, long taken) {}

  /**
   * Hand over the value of each name, in this thread.
   *
   * @param large whether the value of that number is known to be large
   * @return how many requests were under way at once
   */
  static int read(List<byte[]> names, IntPredicate large, ValueSource source, ReadRoom room, ValueSink values)
      throws IOException {
    if (names.size() == 1) {
      values.accept(0, source.read(names).get(0));
      return 1;
    }
    return new ReadAhead(names, large, source, room).read(values);
  }

  private int read(ValueSink values) throws IOException {
    int received = 0;
    try {
      while (received < names.size()) {
        ask();
        ReadRequest first = requests.element();
        List<byte[]> found = await(first.answer);
        see(first, found);
        for (byte[] value : found) {
          values.accept(received++, value);
        }
        room.giveBack(requests.remove().taken);
      }
    } finally {
      for (ReadRequest request : requests) {
        request.answer.cancel(true);
        room.giveBack(request.taken);
      }
    }
    return most;
  }

  /** Make as many requests as may be under way. */
  private void ask() {
    while (requests.size() < REQUESTS && requested < names.size()) {
      boolean one = large.test(requested);
      int end = one ? requested + 1 : endOfSmall();
      long bytes = one ? largestPart : Math.max(largest, Math.min(REQUEST_BYTES, largest * (end - requested)));
      boolean ahead = !requests.isEmpty();
      if (ahead && !room.take(bytes)) {
        return;
      }
      requests.add(request(end, one, ahead ? bytes : 0));
      requested = end;
      most = Math.max(most, requests.size());
    }
  }

  /** Ask for the next values, with room that was taken for them. */
  private ReadRequest request(int end, boolean one, long taken) {
    boolean asked = false;
    try {
      List<byte[]> some = names.subList(requested, end);
      ReadRequest request = new ReadRequest(THREADS.submit(() -> source.read(some)), one, taken);
      asked = true;
      return request;
    } finally {
      if (!asked) { // there may be no memory for another thread
        room.giveBack(taken);
      }
    }
  }

  private int endOfSmall() {
    int count = (int) Math.min(MOST_VALUES, Math.max(1, REQUEST_BYTES / largest));
    int end = requested + 1;
    while (end < Math.min(names.size(), requested + count) && !large.test(end)) {
      end++;
    }
    return end;
  }

  private void see(ReadRequest request, List<byte[]> found) {
    long size = found.stream().mapToLong(value -> value == null ? 0 : value.length).max().orElse(0);
    if (request.large) {
      largestPart = Math.max(1, size);
    } else {
      largest = Math.max(Math.max(1, largest / 2), size);
    }
  }

  private static List<byte[]> await(Future<List<byte[]>> request) throws IOException {
    try {
      return request.get();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while reading");
    } catch (ExecutionException error) {
      Throwable cause = error.getCause();
      if (cause instanceof IOException) {
        throw new IOException(cause.getMessage(), cause);
      }
      if (cause instanceof Error fatal) {
        throw fatal;
      }
      throw (RuntimeException) cause; // a source declares nothing else
    }
  }
}
