package io.safekeeper.spark;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockManagerId;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Where the executors of the application are. They come and go, so it is asked again whenever a store is opened; but
 * the Spark driver answers, and a batch opens many stores, so an answer is good for some seconds.
 */
public final class Cluster {
  private static final long GOOD_NANOS = TimeUnit.SECONDS.toNanos(5);

  private static volatile Seen seen = new Seen(null, 0, 0, 0);

  private Cluster() {}

  /** How many executors and hosts there were. */
  private record Seen(SparkEnv env, long nanos, int executors, int hosts) {
    boolean isGood(SparkEnv now) {
      return env == now && System.nanoTime() - nanos < GOOD_NANOS;
    }
  }

  /**
   * Refuse a backend whose writes not all executors would see: a partition may be loaded by any of them.
   *
   * @param scope who sees the writes: PROCESS, HOST or NETWORK
   * @param now whether an answer of some seconds ago is too old: something is about to be read that another executor
   *     may have written
   */
  public static void requireScope(String scope, String what, boolean now) {
    SparkEnv env = SparkEnv.get();
    if (scope.equals("NETWORK") || env == null || env.blockManager().blockManagerId() == null) {
      return;
    }
    Seen last = seen;
    if (now || !last.isGood(env)) {
      seen = last = look(env);
    }
    if (scope.equals("PROCESS") && last.executors > 1) {
      throw new IllegalStateException(
          what + " keeps its data in one process, and there are " + last.executors
              + " executors: choose a backend that they share");
    }
    if (scope.equals("HOST") && last.hosts > 1) {
      throw new IllegalStateException(
          what + " keeps its data on one host, and the executors are on " + last.hosts
              + " hosts: choose a backend that they share, such as redis: or hdfs:");
    }
  }

  /** The folders that Spark has for files which nobody needs after this process. */
  static List<Path> localFolders() {
    SparkEnv env = SparkEnv.get();
    return env == null
        ? List.of(Path.of(System.getProperty("java.io.tmpdir")))
        : Arrays.stream(env.blockManager().diskBlockManager().localDirsString()).map(Path::of).toList();
  }

  private static Seen look(SparkEnv env) {
    BlockManagerId here = env.blockManager().blockManagerId();
    List<BlockManagerId> others = CollectionConverters.asJava(env.blockManager().master().getPeers(here));
    Set<String> hosts = new HashSet<>(Set.of(here.host()));
    others.forEach(other -> hosts.add(other.host()));
    return new Seen(env, System.nanoTime(), others.size() + 1, hosts.size());
  }
}
