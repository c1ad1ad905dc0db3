package io.safekeeper.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import scala.None$;
import scala.Option;

/** Keeps rows and iterators of a store for longer than its task, while other stores free and use its pages again. */
public final class LateReader {
  private static final String DEFAULT = "default";
  private static final int ITERATORS = 200;

  private final TestProvider provider;
  private final List<StateStoreIterator<UnsafeRowPair>> iterators = new ArrayList<>();
  private final List<UnsafeRowPair> pairs = new ArrayList<>();
  private final List<String> expected = new ArrayList<>();
  private StateStore store;
  private UnsafeRow got;

  public LateReader(TestProvider provider) {
    this.provider = provider;
  }

  /** Read version 1 in a task that puts everything anew, commits if it is to, and ends. */
  public void read(int keys, boolean commit) {
    TaskContextImpl task = TaskContext$.MODULE$.empty();
    TaskContext$.MODULE$.setTaskContext(task);
    try {
      store = provider.provider().getStore(1, Option.empty(), false, false);
      got = store.get(TestStore.numbers(0, 7), DEFAULT);
      for (int i = 0; i < ITERATORS; i++) {
        StateStoreIterator<UnsafeRowPair> iterator = store.iterator(DEFAULT);
        UnsafeRowPair pair = iterator.next();
        for (int step = 0; step < i; step++) {
          pair = iterator.next();
        }
        iterators.add(iterator);
        pairs.add(pair);
        expected.add(text(pair));
      }
      new TestStore(store).putMany(keys, 1000, 2);
      if (commit) {
        store.commit();
      }
      check("before the task's end");
      task.markTaskCompleted(None$.empty());
    } finally {
      TaskContext$.MODULE$.unset();
    }
  }

  /** Fail unless every row that was kept is what it was. */
  public void check(String when) {
    require(got.getString(0).length() >= 1000, "the row of a get " + when);
    for (int i = 0; i < ITERATORS; i++) {
      require(expected.get(i).equals(text(pairs.get(i))), "the row of iterator " + i + " " + when);
    }
  }

  /** What everything says that is read on. */
  public List<String> readOn() {
    List<String> says = new ArrayList<>();
    for (StateStoreIterator<UnsafeRowPair> iterator : iterators) {
      says.add(refused(iterator::next));
    }
    says.add(refused(() -> store.get(TestStore.numbers(0, 7), DEFAULT)));
    says.add(refused(() -> store.iterator(DEFAULT)));
    return says.stream().distinct().sorted().toList();
  }

  private static String refused(Runnable read) {
    try {
      read.run();
    } catch (RuntimeException error) {
      return error.getMessage();
    }
    throw new AssertionError("a late reader was served");
  }

  private static String text(UnsafeRowPair pair) {
    return TestStore.text(pair.key()) + "=" + pair.value().getString(0);
  }

  private static void require(boolean condition, String what) {
    if (!condition) {
      throw new AssertionError(what + " is not what it was");
    }
  }
}
