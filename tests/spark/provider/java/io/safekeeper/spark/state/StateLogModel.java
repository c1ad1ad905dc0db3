package io.safekeeper.spark.state;

import io.safekeeper.spark.commits.BlockCodec;
import io.safekeeper.spark.commits.CommitHead;
import io.safekeeper.spark.commits.CommitKey;
import io.safekeeper.spark.commits.CommitValues;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.spark.unsafe.Platform;

/**
 * Does random things to a {@link StateLog} and to plain maps, and compares them: puts, removes, commits, aborts,
 * going back, catching up, cleaning, loading from commits, and iterators that are read while all that goes on. {@code
 * main} takes a seed and a number of steps; the same seed does the same things. What is freed is poisoned, and in the
 * end nothing is left that was not.
 */
public final class StateLogModel {
  private static final int KEYS = 400;

  private final StateMemory memory = new StateMemory(List.of(Path.of(System.getProperty("java.io.tmpdir"))));
  private final Random random;
  private final List<Version> versions = new ArrayList<>(); // the chain of commits that the log is at the end of
  private final List<OpenIterator> iterators = new ArrayList<>();
  private final int leastWeight;
  private final int pageBytes;
  private final double cleanAt;
  private final BlockCodec codec;
  private final int limit;
  private final boolean checksEachStep; // which lets the index know of each put; else it learns of several at once
  private StateLog log;
  private State now = new State();
  private int ids;

  /** A commit: the state after it, and the values that were stored. */
  private record Version(
      String id, long number, long oldest, State state, List<byte[]> values) {}

  /** So many words that count up from a seed. */
  private record Value(int words, long seed) {}

  /** The keys of each column family. */
  private static final class State extends HashMap<String, Map<Long, Value>> {
    private static final long serialVersionUID = 1L;

    State() {
      put("default", new HashMap<>());
    }

    State copy() {
      State copy = new State();
      forEach((name, keys) -> copy.put(name, new HashMap<>(keys)));
      return copy;
    }
  }

  private record OpenIterator(long[] table, Addresses addresses, Map<Long, Value> left) {}

  private StateLogModel(Random random) {
    this(random, Math.min(Pages.MAX_PAGE_BYTES, 1024 << random.nextInt(10)), 1.2 + 2 * random.nextDouble());
  }

  private StateLogModel(Random random, int pageBytes, double cleanAt) {
    this.random = random;
    this.pageBytes = pageBytes;
    this.cleanAt = cleanAt;
    leastWeight = 1 << random.nextInt(14);
    codec = BlockCodec.values()[random.nextInt(3)];
    limit = random.nextBoolean() ? 64 << 20 : 8192;
    checksEachStep = random.nextBoolean();
    log = emptyLog();
    versions.add(new Version(CommitKey.NO_PARENT, 0, 0, now.copy(), List.of()));
  }

  /** Run with a seed; an exception says at which step the log and the model differ. */
  public static void main(String[] args) {
    run(Long.parseLong(args[0]), Integer.parseInt(args[1]));
  }

  public static void run(long seed, int steps) {
    StateLogModel model = new StateLogModel(new Random(seed));
    for (int step = 0; step < steps; step++) {
      try {
        model.step();
      } catch (RuntimeException | AssertionError error) {
        throw new AssertionError("seed " + seed + ", step " + step, error);
      }
    }
    model.close();
  }

  /** As when a store is over: whoever reads on in an iterator of it is told so, and all that was given up is freed. */
  private void endStore() {
    log.freeRetired();
    for (OpenIterator open : iterators) {
      try {
        check(open.addresses.next() == 0, "an iterator of a store that is over");
      } catch (IllegalStateException error) {
        check(error.getMessage().startsWith("the store is closed"), error.getMessage());
      }
      open.addresses.close();
    }
    iterators.clear();
  }

  private void close() {
    endStore();
    log.close();
    check(memory.memoryBytes() == 0 && memory.diskBytes() == 0, "what was not freed");
  }

  private void step() {
    int choice = random.nextInt(1000);
    if (choice < 600) {
      put();
    } else if (choice < 780) {
      remove();
    } else if (choice < 800) {
      family();
    } else if (choice < 900) {
      iterate();
    } else if (choice < 950) {
      commit();
      if (random.nextInt(3) == 0) {
        endStore();
      }
    } else if (choice < 955) {
      failToCommit();
    } else if (choice < 970) {
      abort();
    } else if (choice < 980) {
      goBack();
    } else if (choice < 990) {
      catchUp();
    } else {
      load();
    }
    if (checksEachStep || choice % 20 == 0) {
      check(log.size() == now.values().stream().mapToInt(Map::size).sum() + now.size() - 1, "number of keys");
    }
    if (choice >= 900) {
      compareAll();
    }
  }

  private void put() {
    String name = anyFamily();
    long key = random.nextInt(KEYS);
    int size = random.nextInt(2000);
    int words = size == 0 ? 600_000 : size < 10 ? 20_000 : random.nextInt(6); // sometimes more than a page
    put(name, key, new Value(words, words == 0 ? 0 : random.nextInt(10) == 0 ? random.nextLong() : 0));
  }

  private void put(String name, long key, Value value) {
    byte[] keyBytes = key(key);
    byte[] valueBytes = bytes(value);
    log.put(
        family(name), keyBytes, Record.at(0), keyBytes.length, valueBytes, Record.at(0), valueBytes.length, 0);
    now.get(name).put(key, value);
  }

  private void remove() {
    String name = anyFamily();
    long key = random.nextInt(KEYS);
    byte[] bytes = key(key);
    boolean removed = log.remove(family(name), bytes, Record.at(0), bytes.length);
    check(removed == (now.get(name).remove(key) != null), "whether the key was there");
  }

  private void family() {
    String name = "family " + random.nextInt(3);
    if (random.nextInt(3) > 0) {
      log.createFamily(name);
      now.computeIfAbsent(name, unused -> new HashMap<>());
    } else {
      check(log.removeFamily(name) == (now.remove(name) != null), "whether the family was there");
    }
  }

  private void iterate() {
    if (iterators.size() < 5 && random.nextInt(4) == 0) {
      String name = anyFamily();
      iterators.add(new OpenIterator(log.pages().table(), log.all(family(name)), new HashMap<>(now.get(name))));
    } else if (!iterators.isEmpty()) {
      OpenIterator open = iterators.get(random.nextInt(iterators.size()));
      if (random.nextInt(20) == 0) {
        open.addresses.close();
        iterators.remove(open);
        return;
      }
      for (int i = random.nextInt(60); i > 0; i--) {
        int address = open.addresses.next();
        if (address == 0) {
          check(open.left.isEmpty(), "what an iterator has not shown at its end");
          iterators.remove(open);
          return;
        }
        long record = Pages.at(open.table, address);
        Value expected = open.left.remove(keyAt(record));
        check(expected != null && expected.equals(valueAt(record)), "what an iterator shows");
      }
    }
  }

  private void commit() {
    log.clean(cleanAt);
    long number = log.current().version() + 1;
    Version version = new Version("commit " + ids++, number, log.oldestVersion(number), now.copy(), values(number));
    log.endCommit(number);
    log.addSavepoint(version.id, number);
    versions.add(version);
  }

  /** The store does not take what the cleaner has moved already. */
  private void failToCommit() {
    log.clean(cleanAt);
    values(log.current().version() + 1);
    abort();
  }

  private List<byte[]> values(long number) {
    return CommitValues.encode(log, number, codec, limit);
  }

  private void abort() {
    log.undoUncommitted();
    now = last().state.copy();
  }

  private void goBack() {
    int steps = 1 + random.nextInt(3);
    Version target = versions.get(Math.max(0, versions.size() - 1 - steps));
    if (log.canUndoTo(target.number, target.id)) {
      log.undoTo(target.id);
      while (last() != target) {
        versions.remove(versions.size() - 1);
      }
      now = target.state.copy();
    }
  }

  /** Go back and replay what was committed since, as an executor does that has an older version in memory. */
  private void catchUp() {
    abort();
    int size = versions.size();
    Version from = versions.get(Math.max(0, size - 1 - random.nextInt(3)));
    if (!log.canUndoTo(from.number, from.id)) {
      return;
    }
    long extent = log.extentBytes();
    log.undoTo(from.id);
    for (Version version : versions.subList(versions.indexOf(from) + 1, size)) {
      replay(version, 0);
      CommitHead head = CommitValues.head(version.values);
      log.advanceStart(head.oldest(), head.offset());
      log.addSavepoint(version.id, version.number);
      check(log.oldestVersion(version.number) >= version.oldest, "the oldest commit that is needed");
      check(log.size() == head.live(), "the keys that a commit counts");
    }
    check(log.extentBytes() <= Math.max(extent, leastWeight), "what a load would replay"); // a last one may be empty
  }

  /** Load some version from what was stored, as a restart would: from its oldest needed commit on. */
  private void load() {
    while (versions.size() > 2 && random.nextBoolean()) {
      versions.remove(versions.size() - 1);
    }
    endStore();
    log.close();
    Version target = last();
    log = target.number > 0 ? new StateLog(memory, 3, leastWeight, pageBytes) : emptyLog();
    if (target.number > 0) {
      CommitHead head = CommitValues.head(target.values);
      log.expect(random.nextBoolean() ? head.live() : 0);
      log.passOver(head.offset());
      for (Version version : versions) {
        if (version.number > 0 && version.number >= target.oldest) {
          replay(version, version.number == target.oldest ? head.offset() : 0);
        }
      }
      check(head.live() == log.size(), "the keys that a commit counts");
      check(log.startOffset() == head.offset() || target.number == target.oldest, "how much of it is needed no more");
      log.addSavepoint(target.id, target.number);
    }
    now = target.state.copy();
  }

  private void replay(Version version, long skipped) {
    CommitHead head = CommitValues.head(version.values);
    check(head.parts() == version.values.size() - 1, "the parts that a commit counts");
    for (byte[] value : version.values) {
      check(value.length <= limit, "the size of a part or a head");
    }
    long bytes = CommitValues.decode(version.values, skipped, log::replay);
    check(bytes == head.rawBytes(), "the bytes that a commit counts");
    log.endCommit(version.number);
  }

  /**
   * Fill a log until it has no room for another page, so that addresses use all of their bits; the put that fails can
   * be undone, and what was committed before is still there, and a load finds it.
   */
  public static void fill() {
    StateLogModel model = new StateLogModel(new Random(0), 1024, Double.POSITIVE_INFINITY);
    long key = 0;
    for (; model.log.pages().memoryBytes() < 50 << 20; key++) {
      model.put("default", key, new Value(60, key));
    }
    model.commit();
    for (int attempt = 0; attempt < 3; attempt++) {
      try {
        for (long more = key; ; more++) {
          model.put("default", more, new Value(60, more));
        }
      } catch (IllegalStateException error) {
        check(error.getMessage().contains("over 32 GB"), error.getMessage());
      }
      model.abort();
      model.compareAll();
    }
    model.put("default", 7, new Value(3, 0));
    model.commit();
    model.compareAll();
    model.load();
    model.compareAll();
    model.close();
  }

  /** So many keys that the index is split again and again, also while an iterator reads what it was before. */
  public static void split() {
    StateLogModel model = new StateLogModel(new Random(0), Pages.MAX_PAGE_BYTES, 1.5);
    int keys = 400_000;
    for (long key = 0; key < keys; key++) {
      model.put("default", key, new Value(1, key));
      if (key % 50_000 == 0) {
        model.iterators.add(new OpenIterator(
            model.log.pages().table(), model.log.all(model.log.defaultFamily()), new HashMap<>(model.now.get("default"))));
      }
    }
    for (OpenIterator open : model.iterators) {
      for (int address = open.addresses.next(); address != 0; address = open.addresses.next()) {
        check(open.left.remove(keyAt(Pages.at(open.table, address))) != null, "what an iterator shows");
      }
      check(open.left.isEmpty(), "what an iterator has not shown");
    }
    model.commit();
    model.compareAll();
    for (long key = 0; key < keys; key += 3) {
      byte[] bytes = key(key);
      check(model.log.remove(model.log.defaultFamily(), bytes, Record.at(0), bytes.length), "whether the key was there");
      model.now.get("default").remove(key);
    }
    model.compareAll();
    model.abort();
    model.compareAll();
    model.load();
    model.compareAll();
    model.close();
  }

  /** A new key whose hash is 0, as that of an empty slot, while there is no page in slot 0. */
  public static void hashZero() {
    long zero = 0x3d2aea2400000002L;
    check(HashIndex.hash(key(zero), Record.at(0), key(zero).length) == 0, "a hash that was computed");
    StateLogModel model = new StateLogModel(new Random(0), 1024, 1.5);
    int met = 0;
    for (int commit = 0; commit < 200; commit++) {
      for (long each = 0; each < 10; each++) {
        model.put("default", each, new Value(20, commit));
      }
      model.commit();
      if (model.log.pages().table()[0] == 0) {
        met++;
        model.put("default", zero, new Value(1, commit));
        model.compareAll();
        model.abort();
        model.compareAll();
      }
    }
    check(met > 0, "the page in slot 0, which was never released");
    model.close();
  }

  private void compareAll() {
    check(log.names().keySet().equals(without(now, "default")), "the names of the families");
    long live = 0;
    for (Map.Entry<String, Map<Long, Value>> expected : now.entrySet()) {
      Map<Long, Value> found = new HashMap<>();
      try (Addresses all = log.all(family(expected.getKey()))) {
        for (int address = all.next(); address != 0; address = all.next()) {
          long record = log.pages().at(address);
          found.put(keyAt(record), valueAt(record));
          live += Record.size(null, record);
        }
      }
      check(found.equals(expected.getValue()), "the keys of " + expected.getKey());
    }
    check(log.liveBytes() >= live, "the size of the newest records");
    check(log.liveBytes() - live <= 48L * now.size(), "the size of the catalog");
  }

  private Family family(String name) {
    return name.equals("default") ? log.defaultFamily() : log.family(name);
  }

  private String anyFamily() {
    List<String> names = new ArrayList<>(now.keySet());
    return random.nextBoolean() ? "default" : names.get(random.nextInt(names.size()));
  }

  private Version last() {
    return versions.get(versions.size() - 1);
  }

  private StateLog emptyLog() {
    StateLog empty = new StateLog(memory, 3, leastWeight, pageBytes);
    empty.addSavepoint(CommitKey.NO_PARENT, 0);
    return empty;
  }

  private static Set<String> without(Map<String, ?> state, String name) {
    Set<String> names = new HashSet<>(state.keySet());
    names.remove(name);
    return names;
  }

  /** A key of one to three words, so that keys have different lengths. */
  private static byte[] key(long key) {
    byte[] bytes = new byte[8 * (1 + (int) (key % 3))];
    Platform.putLong(bytes, Record.at(0), key);
    return bytes;
  }

  private static long keyAt(long record) {
    return Platform.getLong(null, Record.keyAt(null, record));
  }

  private static byte[] bytes(Value value) {
    byte[] bytes = new byte[8 * value.words];
    for (int i = 0; i < value.words; i++) {
      Platform.putLong(bytes, Record.at(8 * i), value.seed + i);
    }
    return bytes;
  }

  private static Value valueAt(long record) {
    long at = Record.valueAt(null, record);
    int words = Record.valueLength(null, record) / 8;
    long seed = words == 0 ? 0 : Platform.getLong(null, at);
    for (int i = 0; i < words; i++) {
      check(Platform.getLong(null, at + 8L * i) == seed + i, "the words of a value");
    }
    return new Value(words, seed);
  }

  private static void check(boolean condition, String what) {
    if (!condition) {
      throw new AssertionError("the log and the model differ in " + what);
    }
  }
}
