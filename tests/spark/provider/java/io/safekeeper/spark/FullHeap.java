package io.safekeeper.spark;

import io.safekeeper.spark.state.StateMemory;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.executor.Executor$;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import scala.Option;
import scala.collection.Iterator;

/** Fills the memory of its JVM with the state of a partition, and prints what came of it. */
public final class FullHeap {
  private FullHeap() {}

  /** Takes what is done, the checkpoint's folder and settings as {@code name=value}. */
  public static void main(String[] args) {
    Map<String, String> settings = new HashMap<>();
    for (int i = 2; i < args.length; i++) {
      String[] pair = args[i].split("=", 2);
      settings.put(pair[0], pair[1]);
    }
    if (args[0].equals("large")) {
      large(args[1], settings);
      return;
    }
    boolean load = args[0].equals("load");
    String encoding = args[0].equals("scanned") ? "range" : "plain";
    boolean family = args[0].equals("family");
    TestProvider provider = new TestProvider(args[1], settings, encoding, family, args[0].equals("lists"));
    StateStore store = null;
    Throwable failure = null;
    try {
      if (load) {
        System.out.println("loaded " + provider.open(1, null).items().size());
        return;
      } else {
        provider.open(0, null).put(0, -1, "committed").commit();
        store = provider.provider().getStore(1, Option.empty(), false, false);
        if (family) {
          beginFamily(store);
        } else {
          fill(store);
        }
      }
    } catch (Throwable error) {
      failure = error;
    }
    System.out.println("fatal " + Executor$.MODULE$.isFatalError(failure, 5));
    for (Throwable error = failure; error != null; error = error.getCause()) {
      System.out.println("says " + error.getMessage());
    }
    if (load) {
      return;
    }
    store.abort();
    TestStore retry = provider.open(1, null);
    System.out.println("after it " + retry.items());
    retry.put(0, 1, "new").commit();
    System.out.println("and then " + provider.open(2, null).numKeys());
  }

  /** Put, commit and load a state of 250 MB. */
  private static void large(String checkpoint, Map<String, String> settings) {
    StateStore store = provider(checkpoint, settings).getStore(0, Option.empty(), false, false);
    UnsafeRow key = TestStore.numbers(0, 0);
    UnsafeRow value = TestStore.value("x".repeat(1000));
    for (long number = 0; number < 250_000; number++) {
      key.setLong(1, number);
      store.put(key, value, "default");
    }
    store.commit();
    System.out.println("keys " + store.metrics().numKeys());
    StateStore loaded = provider(checkpoint, settings).getStore(1, Option.empty(), false, false);
    long found = 0;
    for (Iterator<UnsafeRowPair> all = loaded.iterator("default"); all.hasNext(); all.next()) {
      found++;
    }
    System.out.println("loaded " + found);
  }

  private static SafeKeeperStateStoreProvider provider(String checkpoint, Map<String, String> settings) {
    return new TestProvider(checkpoint, settings, "plain", false, false).provider();
  }

  /** Put a key into a family that the state does not have yet, when the budget is used up. */
  private static void beginFamily(StateStore store) {
    ((SafeKeeperStateStore) store).registerColFamily(
        "other", TestProvider.KEY, TestProvider.VALUE, TestProvider.encoding("plain"), false, false);
    StateMemory memory = StateMemory.in(Cluster.localFolders());
    long budget = memory.budget();
    memory.setBudget(memory.memoryBytes());
    try {
      store.put(TestStore.numbers(0, 0), TestStore.value("x"), "other");
    } finally {
      memory.setBudget(budget);
    }
  }

  /** Put keys until that fails. Nothing but the store takes memory. */
  private static void fill(StateStore store) {
    UnsafeRow key = TestStore.numbers(0, 0);
    UnsafeRow value = TestStore.value("x".repeat(1000));
    for (long number = 0; ; number++) {
      key.setLong(1, number);
      store.put(key, value, "default");
    }
  }
}
