package io.safekeeper.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.executor.Executor$;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import scala.Option;

/** Fills the heap of its JVM with the state of a partition, and prints what came of it. */
public final class FullHeap {
  private FullHeap() {}

  /** Takes what is done, the checkpoint's folder and settings as {@code name=value}. */
  public static void main(String[] args) {
    Map<String, String> settings = new HashMap<>();
    for (int i = 2; i < args.length; i++) {
      String[] pair = args[i].split("=", 2);
      settings.put(pair[0], pair[1]);
    }
    boolean load = args[0].equals("load");
    String encoding = args[0].equals("scanned") ? "range" : "plain";
    TestProvider provider = new TestProvider(args[1], settings, encoding, false, args[0].equals("lists"));
    StateStore store = null;
    Throwable failure = null;
    try {
      if (load) {
        provider.open(1, null);
      } else {
        provider.open(0, null).put(0, -1, "committed").commit();
        store = provider.provider().getStore(1, Option.empty(), false, false);
        fill(store);
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
