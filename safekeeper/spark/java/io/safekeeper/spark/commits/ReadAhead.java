package io.safekeeper.spark.commits;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Reads values in order, and the next ones already while the last are being worked on.
 *
 * <p>A few requests are under way at a time, each for as many values as may have {@link #REQUEST_BYTES} by what was seen
 * so far; so that is about what is in memory for each. Every request takes all of its answer at once, whether or not
 * it is its turn: nobody waits in the agent for memory that is held by answers nobody takes.
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

  private ReadAhead() {}

  /** Reads some values, in the order of their names. */
  interface ValueSource {
    List<byte[]> read(List<byte[]> names) throws IOException;
  }

  /** Receives values in order; null for one that is not there. */
  interface ValueSink {
    void accept(int index, byte[] value) throws IOException;
  }

  /** Hand over the value of each name, in this thread. */
  static void read(List<byte[]> names, ValueSource source, ValueSink values) throws IOException {
    if (names.size() == 1) {
      values.accept(0, source.read(names).get(0));
      return;
    }
    ArrayDeque<Future<List<byte[]>>> requests = new ArrayDeque<>();
    int requested = 0;
    int received = 0;
    int largest = REQUEST_BYTES; // of the values lately; nothing is known of the first
    try {
      while (received < names.size()) {
        while (requests.size() < REQUESTS && requested < names.size()) {
          int count = Math.min(MOST_VALUES, Math.max(1, REQUEST_BYTES / largest));
          List<byte[]> some = names.subList(requested, Math.min(names.size(), requested + count));
          requests.add(THREADS.submit(() -> source.read(some)));
          requested += some.size();
        }
        largest = Math.max(1, largest / 2);
        for (byte[] value : await(requests.remove())) {
          largest = Math.max(largest, value == null ? 0 : value.length);
          values.accept(received++, value);
        }
      }
    } finally {
      requests.forEach(request -> request.cancel(true));
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
