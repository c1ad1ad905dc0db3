package io.safekeeper.spark;

import com.sun.management.OperatingSystemMXBean;
import io.safekeeper.spark.agent.AgentOptions;
import io.safekeeper.spark.commits.BlockCodec;
import io.safekeeper.spark.commits.CommitOptions;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What a user can set, all under {@code spark.sql.streaming.stateStore.safekeeper.}: Spark hands nothing else to a
 * provider. They are read when a query starts.
 */
final class ProviderSettings {
  static final String PREFIX = "spark.sql.streaming.stateStore.safekeeper.";

  private static final String SPARKS = "spark.sql.streaming.stateStore.";

  /** How the names go on, after {@link #SPARKS}, of the settings that only Spark's own providers heed. */
  private static final List<String> OF_OTHERS = List.of(
      "rocksdb.",
      "rowChecksum.",
      "autoSnapshotRepair.",
      "compression.codec",
      "fileChecksumThreadPoolSize",
      "maxVersionsToDeletePerMaintenance",
      "minDeltasForSnapshot");

  /** The largest value that every backend takes; {@code safekeeper.backend.MAX_VALUE_BYTES}. */
  private static final int MAX_VALUE_BYTES = 64 << 20;

  private static final long LEAST_MEMORY_BYTES = 256 << 20;

  private final Map<String, String> given;

  private ProviderSettings(Map<String, String> given) {
    this.given = given;
  }

  static ProviderSettings of(StateStoreConf conf) {
    return new ProviderSettings(CollectionConverters.asJava(conf.sqlConfs()));
  }

  /** {@code url}: the backend, such as {@code log:///var/lib/app}. There is no default. */
  String url() {
    return get("url").orElseThrow(() -> new IllegalArgumentException(
        "which backend keeps the state? set " + PREFIX + "url, such as log:///var/lib/app"));
  }

  /**
   * {@code python}: the interpreter that runs the agent. By default the one that PySpark uses: {@code
   * spark.pyspark.python}, else {@code PYSPARK_PYTHON} in the executor's environment, else {@code python3}.
   */
  String python() {
    return PythonChoice.of(get("python"));
  }

  /** {@code queueBytes}: how many bytes of commits the agent holds at most; 128 MiB. */
  long queueBytes() {
    return number("queueBytes", 128 << 20, 1);
  }

  /** {@code agentStartMs}: how long an agent may take until it is ready; a minute. */
  long agentStartMillis() {
    return number("agentStartMs", 60_000, 1);
  }

  /**
   * {@code retryMs}: for how long a request that does not get on is sent again while the agent or the store is
   * unavailable; a minute.
   */
  long retryMillis() {
    return number("retryMs", 60_000, 1);
  }

  /**
   * {@code agentSilentMs}: how long an agent may say nothing in the middle of a request, where it says every second that
   * it is alive, until it counts as hanging and is replaced; a minute.
   */
  long agentSilentMillis() {
    return number("agentSilentMs", 60_000, 3000);
  }

  /**
   * {@code leaseMs}: how long to wait until another task of the executor is done with a partition's state, not counting
   * its loads and commits; a minute.
   */
  long leaseMillis() {
    return number("leaseMs", 60_000, 0);
  }

  /**
   * {@code codec}: how commits are compressed, {@code zstd} (the default), {@code lz4}, which is faster and larger,
   * or none.
   */
  BlockCodec codec() {
    String name = get("codec").orElse("zstd");
    try {
      return BlockCodec.valueOf(name.toUpperCase(Locale.ROOT));
    } catch (IllegalArgumentException error) {
      throw bad("codec", name, "zstd, lz4 or none");
    }
  }

  /** {@code valueBytes}: a commit that is larger is written in parts; 16 MiB, and 64 MiB at the most. */
  int valueBytes() {
    return (int) Math.min(MAX_VALUE_BYTES, number("valueBytes", 16 << 20, 1024));
  }

  /**
   * {@code memoryBytes}: how many bytes outside the heap the indexes of all states in an executor may have; by default
   * what the machine or the container has beyond the heap, less an eighth of it all. The query that started last says.
   */
  long memoryBytes() {
    OperatingSystemMXBean machine = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
    long all = machine.getTotalMemorySize();
    long rest = all - all / 8 - Runtime.getRuntime().maxMemory();
    return number("memoryBytes", Math.max(rest, LEAST_MEMORY_BYTES), 1 << 20);
  }

  /**
   * {@code cleanAt}: how many times the size of the state a restart may have to read before commits begin to move old
   * records to the front; 2. A larger number writes less and restarts more slowly.
   */
  double cleanAt() {
    String text = get("cleanAt").orElse("2");
    try {
      double most = Double.parseDouble(text);
      if (most > 1) {
        return most;
      }
    } catch (NumberFormatException error) {
      throw bad("cleanAt", text, "a number above 1");
    }
    throw bad("cleanAt", text, "a number above 1");
  }

  /**
   * {@code leastCommitBytes}: a commit counts as at least so large when that is decided, so that small ones do not pile
   * up; 64 KiB. A larger number lets a restart read fewer commits, and small commits write more.
   */
  int leastCommitBytes() {
    return (int) Math.min(MAX_VALUE_BYTES, number("leastCommitBytes", 64 << 10, 1));
  }

  /**
   * {@code movedCheckpoint}: what happens when the checkpoint folder is not where it was when the state was first
   * written: {@code refuse} (the default), since a copied folder would make two queries write one state, or {@code
   * adopt}.
   */
  boolean adoptsMovedCheckpoint() {
    String mode = get("movedCheckpoint").orElse("refuse");
    if (!mode.equals("refuse") && !mode.equals("adopt")) {
      throw bad("movedCheckpoint", mode, "refuse or adopt");
    }
    return mode.equals("adopt");
  }

  /** What the agent is started with. */
  AgentOptions agent() {
    return new AgentOptions(
        python(), PREFIX + "python", url(), queueBytes(), agentStartMillis(), retryMillis(), agentSilentMillis());
  }

  /** How commits are made. */
  CommitOptions commits() {
    return new CommitOptions(codec(), valueBytes(), cleanAt());
  }

  /** The settings that somebody made for another provider, by name: here they have no effect. */
  List<String> ignored() {
    return given.keySet().stream()
        .filter(name -> name.startsWith(SPARKS))
        .filter(name -> OF_OTHERS.stream().anyMatch(other -> name.startsWith(other, SPARKS.length())))
        .sorted()
        .toList();
  }

  /** Rows are kept as Spark has them in memory, so Avro's evolution of schemas cannot be had. */
  private void refuseAvro() {
    String format = given.getOrDefault(SPARKS + "encodingFormat", "unsaferow");
    if (!format.equalsIgnoreCase("unsaferow")) {
      throw new IllegalArgumentException(
          SPARKS + "encodingFormat=" + format + ": safekeeper keeps rows as unsaferow, choose that or leave it out");
    }
  }

  /** Read everything once, so that a wrong value shows before the first batch. */
  ProviderSettings check() {
    url();
    queueBytes();
    agentStartMillis();
    retryMillis();
    agentSilentMillis();
    leaseMillis();
    codec();
    valueBytes();
    cleanAt();
    memoryBytes();
    leastCommitBytes();
    adoptsMovedCheckpoint();
    refuseAvro();
    return this;
  }

  private long number(String name, long otherwise, long least) {
    Optional<String> text = get(name);
    try {
      long value = text.map(Long::parseLong).orElse(otherwise);
      if (value >= least) {
        return value;
      }
    } catch (NumberFormatException error) {
      throw bad(name, text.get(), "a number");
    }
    throw bad(name, text.get(), "a number from " + least + " on");
  }

  private Optional<String> get(String name) {
    return Optional.ofNullable(given.get(PREFIX + name));
  }

  private static IllegalArgumentException bad(String name, String value, String takes) {
    return new IllegalArgumentException(PREFIX + name + "=" + value + ": it takes " + takes);
  }
}
