package io.safekeeper.spark;

import io.safekeeper.spark.commits.Commits;
import io.safekeeper.spark.commits.History;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Random;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreSuiteBase;
import org.apache.spark.sql.execution.streaming.state.StateStoreTestsHelper;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.Utils;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Set;

/** Spark's tests of a state store, all that do not look into the files of Spark's own ones, on our provider. */
public final class SparkBaseSuite extends StateStoreSuiteBase<SafeKeeperStateStoreProvider> {
  private static final int ANY_DELTAS = 10;
  private static final long MOST_VERSIONS = 1000; // that a test makes

  @Override
  public SafeKeeperStateStoreProvider newStoreProvider() {
    return newStoreProvider(newId(), false);
  }

  @Override
  public SafeKeeperStateStoreProvider newStoreProvider(boolean columnFamilies) {
    return newStoreProvider(newId(), columnFamilies);
  }

  @Override
  public SafeKeeperStateStoreProvider newStoreProvider(StateStoreId id) {
    return newStoreProvider(id, false);
  }

  @Override
  public SafeKeeperStateStoreProvider newStoreProvider(StateStoreId id, boolean columnFamilies) {
    return make(id, keySchema(), plainKeys(), columnFamilies, conf(ANY_DELTAS, 2), new Configuration());
  }

  @Override
  public SafeKeeperStateStoreProvider newStoreProvider(StateStoreId id, Configuration hadoop) {
    return make(id, keySchema(), plainKeys(), false, conf(ANY_DELTAS, 2), hadoop);
  }

  @Override
  public SafeKeeperStateStoreProvider newStoreProvider(int minDeltas, int inMemory) {
    return make(newId(), keySchema(), plainKeys(), false, conf(minDeltas, inMemory), new Configuration());
  }

  @Override
  public SafeKeeperStateStoreProvider newStoreProvider(
      StructType keys, KeyStateEncoderSpec encoding, boolean columnFamilies) {
    return make(newId(), keys, encoding, columnFamilies, conf(ANY_DELTAS, 2), new Configuration());
  }

  /** From Spark 4.1 on. */
  public SafeKeeperStateStoreProvider newStoreProviderWithClonedConf(StateStoreId id) {
    return make(id, keySchema(), plainKeys(), false, conf(ANY_DELTAS, 2).clone(), new Configuration());
  }

  /** From Spark 4.1 on. */
  public SafeKeeperStateStoreProvider newStoreProviderNoInit() {
    return new SafeKeeperStateStoreProvider();
  }

  @Override
  public Set<Tuple2<Tuple2<String, Object>, Object>> getLatestData(
      SafeKeeperStateStoreProvider provider, boolean columnFamilies) {
    return getData(provider, -1, columnFamilies);
  }

  /** What another provider, one that has nothing loaded, finds in that version; in the latest if it is negative. */
  @Override
  public Set<Tuple2<Tuple2<String, Object>, Object>> getData(
      SafeKeeperStateStoreProvider provider, int version, boolean columnFamilies) {
    SafeKeeperStateStoreProvider other = newStoreProvider(provider.stateStoreId(), columnFamilies);
    ReadStateStore store = other.getReadStore(version < 0 ? latest(provider) : version, Option.empty());
    try {
      return StateStoreTestsHelper.rowPairsToDataSet(store.iterator("default"));
    } finally {
      store.abort();
      other.close();
    }
  }

  @Override
  public SQLConf getDefaultSQLConf(int minDeltas, int inMemory) {
    return conf(minDeltas, inMemory);
  }

  private static long latest(SafeKeeperStateStoreProvider provider) {
    try {
      String group = QueryIdentity.of(provider.stateStoreId(), new Configuration()).group();
      History history = new Commits(provider.agent(), group).history();
      long version = MOST_VERSIONS;
      while (version > 0 && history.find(version, null).isEmpty()) {
        version--;
      }
      return version;
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private SafeKeeperStateStoreProvider make(
      StateStoreId id,
      StructType keys,
      KeyStateEncoderSpec encoding,
      boolean columnFamilies,
      SQLConf conf,
      Configuration hadoop) {
    hadoop.set("sql.streaming.runId", UUID.randomUUID().toString());
    SafeKeeperStateStoreProvider provider = new SafeKeeperStateStoreProvider();
    provider.init(
        id,
        keys,
        valueSchema(),
        encoding,
        columnFamilies,
        new StateStoreConf(conf, Map$.MODULE$.empty()),
        hadoop,
        false,
        Option.empty());
    return provider;
  }

  private KeyStateEncoderSpec plainKeys() {
    return new NoPrefixKeyStateEncoderSpec(keySchema());
  }

  private static StateStoreId newId() {
    String folder = Utils.createTempDir("", "spark").getPath();
    return new StateStoreId(folder, new Random().nextInt(Integer.MAX_VALUE), 0, "default");
  }

  private static SQLConf conf(int minDeltas, int inMemory) {
    SQLConf conf = new SQLConf();
    SuiteSettings.all().forEach(conf::setConfString);
    conf.setConfString("spark.sql.streaming.stateStore.minDeltasForSnapshot", String.valueOf(minDeltas));
    conf.setConfString("spark.sql.streaming.maxBatchesToRetainInMemory", String.valueOf(inMemory));
    conf.setConfString("spark.sql.streaming.minBatchesToRetain", "2");
    conf.setConfString(ProviderSettings.PREFIX + "leaseMs", "1000"); // nobody but the test itself has a store open
    return conf;
  }
}
