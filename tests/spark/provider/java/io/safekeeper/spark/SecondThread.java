package io.safekeeper.spark;

import io.safekeeper.spark.state.StateMemory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import scala.None$;
import scala.Option;
import scala.collection.Iterator;

/**
 * A task with a second thread that uses the task's store and goes on when the task has ended, as the runners of Python
 * and of scripts may, while other tasks free the pages and use them again. In a JVM of its own, which may die of it.
 */
public final class SecondThread {
  private static final String DEFAULT = "default";
  private static final int KEYS = 1500;
  private static final int KEPT = 200;
  private static final String REST = "x".repeat(1000);

  private final TestProvider provider;
  private final CountDownLatch started = new CountDownLatch(1);
  private final CountDownLatch freed = new CountDownLatch(1); // the pages of the task's version
  private StateStore store;
  private StateStoreIterator<UnsafeRowPair> iterator; // of the task's own thread
  private UnsafeRowPair pair;
  private UnsafeRow row;
  private int reads;

  private SecondThread(TestProvider provider) {
    this.provider = provider;
  }

  /** Takes how many tasks there are of each kind, the checkpoint's folder and settings as {@code name=value}. */
  public static void main(String[] args) throws Exception {
    Map<String, String> settings = new HashMap<>();
    for (int i = 2; i < args.length; i++) {
      String[] pair = args[i].split("=", 2);
      settings.put(pair[0], pair[1]);
    }
    TestProvider first = new TestProvider(args[1], settings, "plain", false, false);
    put(first, 0);
    for (String end : List.of("committed", "aborted", "opened by the second")) {
      for (int round = 0; round < Integer.parseInt(args[0]); round++) {
        new SecondThread(new TestProvider(args[1], settings, "plain", false, false)).run(end);
      }
      System.out.println(end);
    }
    first.provider().close();
    while (StateMemory.in(Cluster.localFolders()).diskBytes() > 0) { // the last second thread may just be ending
      Thread.sleep(10);
      TestProvider another = new TestProvider(args[1], settings, "plain", false, false);
      another.open(1, null).abort();
      another.provider().close();
    }
    System.out.println("all is freed");
  }

  private static void put(TestProvider provider, long version) {
    StateStore store = provider.provider().getStore(version, Option.empty(), false, false);
    for (int key = 0; key < KEYS; key++) {
      store.put(TestStore.numbers(0, key), TestStore.value(key + REST), DEFAULT);
    }
    store.commit();
  }

  /** One task, of version 1, that a second thread outlives. */
  private void run(String end) throws Exception {
    TaskContextImpl task = TaskContext$.MODULE$.empty();
    Future<String> second;
    boolean others = end.equals("opened by the second");
    if (others) {
      second = TestProvider.inBackground(() -> {
        open(task);
        return use();
      });
      started.await();
    } else {
      open(task);
      second = TestProvider.inBackground(this::use);
      started.await();
    }
    for (int key = 0; key < KEYS; key++) {
      store.put(TestStore.numbers(0, key), TestStore.value(key + REST), DEFAULT);
    }
    if (end.equals("committed")) {
      store.commit();
    }
    task.markTaskCompleted(None$.empty());
    if (!others) {
      check(pair);
      check(7, row);
    }
    long version = end.equals("committed") ? 2 : 1;
    put(provider, version); // into pages that are free now
    put(provider, version + 1);
    provider.provider().close(); // which unmaps them
    freed.countDown();
    String last = second.get();
    require(last.contains("the store is closed") || last.contains("after "), "what a late reader is told: " + last);
    require(reads > 0, "that the second thread has read");
    put(provider, version + 2); // the second thread is gone: what it read is freed now
    provider.provider().close();
  }

  private void open(TaskContextImpl task) {
    TaskContext$.MODULE$.setTaskContext(task);
    try {
      store = provider.provider().getStore(1, Option.empty(), false, false);
    } finally {
      TaskContext$.MODULE$.unset();
    }
    iterator = store.iterator(DEFAULT);
    pair = iterator.next();
    row = store.get(TestStore.numbers(0, 7), DEFAULT);
  }

  /** Read until that is refused; return what was said. Rows that were kept are what they were, now and afterwards. */
  private String use() throws InterruptedException {
    UnsafeRow mine = null;
    int key = 0;
    List<UnsafeRowPair> kept = new ArrayList<>();
    StateStoreIterator<UnsafeRowPair> open = store.iterator(DEFAULT);
    String said = null;
    while (said == null) {
      try {
        for (Iterator<UnsafeRowPair> all = open; all.hasNext(); ) {
          UnsafeRowPair found = all.next();
          check(found);
          if (kept.size() < KEPT) {
            kept.add(found);
          }
          reads++;
          started.countDown();
        }
        key = reads % KEYS;
        mine = store.get(TestStore.numbers(0, key), DEFAULT);
        check(key, mine);
        if (iterator.hasNext()) {
          check(iterator.next()); // one of another thread's
        }
        open = store.iterator(DEFAULT);
      } catch (RuntimeException error) {
        said = error.getMessage();
      }
    }
    freed.await();
    if (mine != null) {
      check(key, mine);
    }
    kept.forEach(SecondThread::check);
    refused(open);
    open.close();
    return said;
  }

  private static void refused(StateStoreIterator<UnsafeRowPair> open) {
    try {
      if (open.hasNext()) {
        open.next();
        throw new AssertionError("a late reader was served");
      }
    } catch (IllegalStateException error) {
      require(error.getMessage().contains("the store is closed"), error.getMessage());
    }
  }

  private static void check(UnsafeRowPair pair) {
    check((int) pair.key().getLong(1), pair.value());
  }

  private static void check(int key, UnsafeRow value) {
    require(value.getString(0).equals(key + REST), "the value of " + key);
  }

  private static void require(boolean condition, String what) {
    if (!condition) {
      throw new AssertionError("wrong: " + what);
    }
  }
}
