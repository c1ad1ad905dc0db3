package io.safekeeper.spark.commits;

import java.io.IOException;
import java.util.AbstractList;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

/** Reads through {@link ReadAhead} from a source that answers late, in any order, with values of any size, or not. */
public final class ReadAheadModel {
  private static final ReadAhead.ReadRoom UNLIMITED = room(Long.MAX_VALUE);

  private final AtomicInteger now = new AtomicInteger();
  private final AtomicInteger most = new AtomicInteger();
  private final AtomicInteger requests = new AtomicInteger();

  private ReadAheadModel() {}

  /** Read so many values, in order, some of them absent; return the number of requests that it took. */
  public static int run(long seed, int count, int largest) throws IOException {
    ReadAheadModel model = new ReadAheadModel();
    Random random = new Random(seed);
    List<byte[]> names = names(count);
    int[] sizes = random.ints(count, -1, largest).toArray();
    int[] next = {0};
    ReadAhead.read(names, index -> false, some -> model.answer(some, sizes), UNLIMITED, (index, value) -> {
      check(index == next[0]++, "the order");
      check(sizes[index] < 0 ? value == null : value.length == sizes[index], "value " + index);
    });
    check(next[0] == count, "the number of values");
    check(model.most.get() <= 4, "the number of requests at a time");
    check(count < 8 || model.most.get() > 1, "that there are several requests at a time");
    return model.requests.get();
  }

  private static ReadAhead.ReadRoom room(long bytes) {
    AtomicLong left = new AtomicLong(bytes);
    return new ReadAhead.ReadRoom() {
      @Override
      public boolean take(long wanted) {
        if (left.addAndGet(-wanted) >= 0) {
          return true;
        }
        left.addAndGet(wanted);
        return false;
      }

      @Override
      public void giveBack(long taken) {
        check(left.addAndGet(taken) <= bytes, "what is given back");
      }
    };
  }

  /** Heads and large parts in turn, with room for so many bytes; how many requests there were at once, at the most. */
  public static int parts(long bytes) throws IOException {
    ReadAheadModel model = new ReadAheadModel();
    int[] sizes = IntStream.range(0, 40).map(index -> index % 4 == 0 ? 100 : 1 << 20).toArray();
    ReadAhead.ReadRoom room = room(bytes);
    int most = ReadAhead.read(names(40), index -> index % 4 != 0, some -> {
      check(some.size() == 1 || some.stream().allMatch(name -> new String(name).matches("\\d?[048]")), "what is together");
      return model.answer(some, sizes);
    }, room, (index, value) -> check(value.length == sizes[index], "value " + index));
    check(model.most.get() == most, "how many requests there were at once");
    check(room.take(bytes), "that all room is given back");
    return most;
  }

  /** Read some values of so many bytes that are not known to be large; for how much the last leave was asked. */
  public static long lastLeave(int size) throws IOException {
    long[] asked = {0};
    ReadAhead.ReadRoom room = new ReadAhead.ReadRoom() {
      @Override
      public boolean take(long bytes) {
        asked[0] = bytes;
        return true;
      }

      @Override
      public void giveBack(long bytes) {}
    };
    ReadAhead.read(names(8), index -> false, some -> List.of(new byte[size]), room, (index, value) -> {});
    return asked[0];
  }

  /** There is no memory to make the third request with: what was taken for it is given back, too. */
  public static String noMemory() throws IOException {
    List<byte[]> names = new AbstractList<>() {
      private final List<byte[]> all = names(20);
      private int requests;

      @Override
      public byte[] get(int index) {
        return all.get(index);
      }

      @Override
      public int size() {
        return all.size();
      }

      @Override
      public List<byte[]> subList(int from, int to) {
        if (++requests == 3) {
          throw new OutOfMemoryError("no thread");
        }
        return all.subList(from, to);
      }
    };
    ReadAhead.ReadRoom room = room(1 << 30);
    try {
      ReadAhead.read(names, index -> false, some -> List.of(new byte[1]), room, (index, value) -> {});
    } catch (OutOfMemoryError error) {
      check(room.take(1 << 30), "that all room is given back");
      return error.getMessage();
    }
    throw new AssertionError("there was no error");
  }

  private List<byte[]> answer(List<byte[]> some, int[] sizes) {
    requests.incrementAndGet();
    most.accumulateAndGet(now.incrementAndGet(), Math::max);
    try {
      Thread.sleep(new Random(some.get(0)[0]).nextInt(3) + 1L);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
    List<byte[]> values = new ArrayList<>();
    for (byte[] name : some) {
      int size = sizes[Integer.parseInt(new String(name))];
      values.add(size < 0 ? null : new byte[size]);
    }
    now.decrementAndGet();
    return values;
  }

  /** One request fails while others are under way and would never end: the error comes out and they are given up. */
  public static String failure() throws InterruptedException {
    CountDownLatch started = new CountDownLatch(3);
    CountDownLatch givenUp = new CountDownLatch(3);
    try {
      ReadAhead.read(names(9), index -> false, some -> {
        try {
          if (new String(some.get(0)).equals("0")) {
            started.await();
            throw new IOException("out of order");
          }
          started.countDown();
          new CountDownLatch(1).await();
        } catch (InterruptedException error) {
          givenUp.countDown();
        }
        return List.of();
      }, UNLIMITED, (index, value) -> check(false, "that nothing is read"));
    } catch (IOException error) {
      check(givenUp.await(60, TimeUnit.SECONDS), "that the others are given up");
      return error.getMessage();
    }
    throw new AssertionError("there was no error");
  }

  private static List<byte[]> names(int count) {
    List<byte[]> names = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      names.add(Integer.toString(i).getBytes());
    }
    return names;
  }

  private static void check(boolean condition, String what) {
    if (!condition) {
      throw new AssertionError("wrong: " + what);
    }
  }
}
