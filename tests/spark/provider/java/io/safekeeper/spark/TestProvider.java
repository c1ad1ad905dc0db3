package io.safekeeper.spark;

import io.safekeeper.spark.agent.Attempted;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.PrefixKeyScanStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.NextIterator;
import scala.Enumeration;
import scala.None$;
import scala.Option;
import scala.Tuple4;
import scala.jdk.javaapi.CollectionConverters;

/** A provider as the tests use it: keys are a pair of numbers, values are text. */
public final class TestProvider {
  static final StructType KEY = new StructType().add("prefix", DataTypes.LongType).add("key", DataTypes.LongType);
  static final StructType VALUE = new StructType().add("value", DataTypes.StringType);

  private final SafeKeeperStateStoreProvider provider = new SafeKeeperStateStoreProvider();

  /**
   * @param encoding how keys are encoded: see {@link #encoding}
   * @param lists whether a key has several values
   */
  public TestProvider(
      String checkpoint, Map<String, String> settings, String encoding, boolean families, boolean lists) {
    this(checkpoint, settings, encoding, families, lists, 0);
  }

  /** Of one of several partitions. */
  public TestProvider(
      String checkpoint,
      Map<String, String> settings,
      String encoding,
      boolean families,
      boolean lists,
      int partition) {
    SQLConf conf = new SQLConf();
    settings.forEach(conf::setConfString);
    Configuration hadoop = new Configuration();
    hadoop.set("sql.streaming.runId", UUID.randomUUID().toString());
    provider.init(
        new StateStoreId(checkpoint + "/state", 0, partition, "default"),
        keySchema(encoding),
        VALUE,
        encoding(encoding),
        families,
        new StateStoreConf(conf, scala.collection.immutable.Map$.MODULE$.empty()),
        hadoop,
        lists,
        Option.empty());
  }

  /** What Spark says that keys are: those of joins of format 4 without the event time, which their rows do have. */
  static StructType keySchema(String encoding) {
    return encoding.startsWith("time") ? new StructType().add("prefix", DataTypes.LongType) : KEY;
  }

  /** Keys as they are, found by prefix or range, or with the event time of a join of format 4 first or last. */
  static KeyStateEncoderSpec encoding(String name) {
    return switch (name) {
      case "time first" -> withTime("TimestampAsPrefixKeyStateEncoderSpec");
      case "time last" -> withTime("TimestampAsPostfixKeyStateEncoderSpec");
      case "prefix" -> new PrefixKeyScanStateEncoderSpec(KEY, 1);
      case "range" -> new RangeKeyScanStateEncoderSpec(
          KEY, CollectionConverters.asScala(List.<Object>of(0, 1)).toSeq());
      default -> new NoPrefixKeyStateEncoderSpec(KEY);
    };
  }

  /** An encoding that Spark has from 4.2 on. */
  private static KeyStateEncoderSpec withTime(String type) {
    StructType schema = keySchema("time").add("__event_time", DataTypes.LongType, false);
    Map<String, Object> json = Map.of("keyStateEncoderType", type);
    return KeyStateEncoderSpec.fromJson(
        schema, scala.collection.immutable.Map.from(CollectionConverters.asScala(json)));
  }

  /** Which of these settings have no effect. */
  public static List<String> ignored(Map<String, String> settings) {
    SQLConf conf = new SQLConf();
    settings.forEach(conf::setConfString);
    return ProviderSettings.of(new StateStoreConf(conf, scala.collection.immutable.Map$.MODULE$.empty())).ignored();
  }

  /** The group that has a store's commits, if its states are in that folder. */
  public static String group(String root, long operator, int partition, String store) throws IOException {
    return QueryIdentity.of(new StateStoreId(root, operator, partition, store), new Configuration()).group();
  }

  public SafeKeeperStateStoreProvider provider() {
    return provider;
  }

  public TestStore open(long version, String id) {
    return new TestStore(provider.getStore(version, Option.apply(id), false, false));
  }

  /** Commit batches that each update some of so many keys at random; the one of version 0 puts all of them. */
  public void commitBatches(long version, int batches, int keys, int updates) {
    Random random = new Random(version);
    for (long end = version + batches; version < end; version++) {
      StateStore store = provider.getStore(version, Option.empty(), false, false);
      UnsafeRow value = TestStore.value("batch " + version);
      for (int i = 0; i < (version == 0 ? keys : updates); i++) {
        store.put(TestStore.numbers(0, version == 0 ? i : random.nextInt(keys)), value, "default");
      }
      store.commit();
    }
  }

  public TestStore openEmpty(long version) {
    return new TestStore(provider.getStore(version, Option.empty(), true, true));
  }

  public TestStore openForReading(long version, String id) {
    return new TestStore((StateStore) provider.getReadStore(version, Option.apply(id)));
  }

  public TestStore upgrade(TestStore store) {
    return new TestStore(
        provider.upgradeReadStoreToWriteStore(store.store(), store.store().version(), Option.empty(), false));
  }

  public TestStore replay(long from, long to) {
    return new TestStore(provider.replayStateFromSnapshot(from, to, true, Option.empty(), Option.empty()));
  }

  /** The changes of some versions, as text. */
  public List<String> changes(long from, long to, String family) {
    NextIterator<Tuple4<Enumeration.Value, UnsafeRow, UnsafeRow, Object>> feed =
        provider.getStateStoreChangeDataReader(from, to, Option.apply(family), Option.empty());
    List<String> changes = new ArrayList<>();
    while (feed.hasNext()) {
      var change = feed.next();
      String value = change._3() == null ? "" : "=" + change._3().getString(0);
      String type = change._1().toString().replace("_record", "");
      changes.add(change._4() + " " + type + " " + TestStore.text(change._2()) + value);
    }
    feed.closeIfNeeded();
    return changes;
  }

  /** Ask the agent for something that fails at first; see {@link Attempted}. */
  public int ask(int attempts, long millis, boolean getsOn) throws IOException {
    return Attempted.ask(provider.agent(), attempts, millis, getsOn);
  }

  public long agentPid() {
    return provider.agent().pid();
  }

  /** Open a store in a task that then ends, with an error or without; return the store. */
  public TestStore openInTask(long version, boolean commit, String failure) {
    TaskContextImpl task = TaskContext$.MODULE$.empty();
    TaskContext$.MODULE$.setTaskContext(task);
    try {
      TestStore store = open(version, null);
      store.put(1, 1, "by a task");
      if (commit) {
        store.commit();
      }
      task.markTaskCompleted(failure == null ? None$.empty() : Option.apply(new IllegalStateException(failure)));
      return store;
    } finally {
      TaskContext$.MODULE$.unset();
    }
  }

  /** A store that has committed in a task that goes on. */
  public TestStore commitInTask(long version) {
    TaskContext$.MODULE$.setTaskContext(TaskContext$.MODULE$.empty());
    try {
      TestStore store = open(version, null).put(1, 1, "by a task");
      store.commit();
      return store;
    } finally {
      TaskContext$.MODULE$.unset();
    }
  }

  /** A task that was killed when it opened a store, and has not come to its end yet. */
  public TaskContextImpl killedTask(long version) {
    TaskContextImpl task = TaskContext$.MODULE$.empty();
    TaskContext$.MODULE$.setTaskContext(task);
    try {
      task.markInterrupted("the test kills it");
      open(version, null);
    } catch (Exception error) {
      return task;
    } finally {
      TaskContext$.MODULE$.unset();
    }
    throw new AssertionError("a store was opened in a task that was killed");
  }

  public void end(TaskContextImpl task) {
    task.markTaskCompleted(None$.empty());
  }

  /** Do something in another thread. */
  public static <T> Future<T> inBackground(Callable<T> work) {
    CompletableFuture<T> result = new CompletableFuture<>();
    Thread thread = new Thread(() -> {
      try {
        result.complete(work.call());
      } catch (Throwable error) {
        result.completeExceptionally(error);
      }
    });
    thread.setDaemon(true);
    thread.start();
    return result;
  }

  /** Whether a thread is in a method of a class, whose name begins below this package. */
  public static boolean someThreadIsIn(String type, String method) {
    return !threadsIn(type, method).isEmpty();
  }

  /** Interrupt the threads that are in a method of such a class. */
  public static void interruptThreadsIn(String type, String method) {
    threadsIn(type, method).forEach(Thread::interrupt);
  }

  private static List<Thread> threadsIn(String type, String method) {
    String name = TestProvider.class.getPackageName() + "." + type;
    return Thread.getAllStackTraces().entrySet().stream()
        .filter(thread -> Arrays.stream(thread.getValue())
            .anyMatch(line -> line.getClassName().equals(name) && line.getMethodName().equals(method)))
        .map(Map.Entry::getKey)
        .toList();
  }

  public Future<TestStore> openInBackground(long version) {
    return inBackground(() -> open(version, null));
  }

  public Future<String> commitInBackground(TestStore store) {
    return inBackground(store::commit);
  }
}
