package io.safekeeper.spark;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockManagerId;
import scala.jdk.javaapi.CollectionConverters;

/** Where the executors of the application are. */
final class Cluster {
  private Cluster() {}

  /**
   * Refuse a backend whose writes not all executors would see: a partition may be loaded by any of them.
   *
   * @param scope who sees the writes: PROCESS, HOST or NETWORK
   */
  static void requireScope(String scope, String what) {
    SparkEnv env = SparkEnv.get();
    if (scope.equals("NETWORK") || env == null) {
      return;
    }
    BlockManagerId here = env.blockManager().blockManagerId();
    List<BlockManagerId> others = CollectionConverters.asJava(env.blockManager().master().getPeers(here));
    Set<String> hosts = new HashSet<>(Set.of(here.host()));
    others.forEach(other -> hosts.add(other.host()));
    if (scope.equals("PROCESS") && !others.isEmpty()) {
      throw new IllegalStateException(
          what + " keeps its data in one process, and there are " + (others.size() + 1)
              + " executors: choose a backend that they share");
    }
    if (scope.equals("HOST") && hosts.size() > 1) {
      throw new IllegalStateException(
          what + " keeps its data on one host, and the executors are on " + hosts.size()
              + " hosts: choose a backend that they share, such as redis: or hdfs:");
    }
  }
}
