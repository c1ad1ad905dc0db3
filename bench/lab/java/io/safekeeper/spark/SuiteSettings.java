package io.safekeeper.spark;

import java.util.Map;
import org.apache.spark.SparkConf;

/** What Spark is told so that a suite uses our provider; where the state goes is a property of the JVM. */
final class SuiteSettings {
  private static final String STATE_STORE = "spark.sql.streaming.stateStore.";

  private SuiteSettings() {}

  static Map<String, String> all() {
    return Map.of(
        STATE_STORE + "providerClass", SafeKeeperStateStoreProvider.class.getName(),
        ProviderSettings.PREFIX + "url", System.getProperty("safekeeper.url"),
        ProviderSettings.PREFIX + "python", System.getProperty("safekeeper.python"));
  }

  static SparkConf with(SparkConf conf) {
    all().forEach(conf::set);
    return conf;
  }
}
