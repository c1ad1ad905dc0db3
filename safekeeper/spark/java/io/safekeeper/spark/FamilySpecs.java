package io.safekeeper.spark;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors;

/**
 * The column families that Spark has told a provider of. What it may not do with them is refused as Spark's own
 * does.
 */
final class FamilySpecs {
  /** The name of the family that every store has; {@code StateStore.DEFAULT_COL_FAMILY_NAME}. */
  static final String DEFAULT = "default";

  private final Map<String, FamilySpec> specs = new ConcurrentHashMap<>();
  private final boolean several;

  /**
   * @param several whether there may be other families than the default one
   */
  FamilySpecs(FamilySpec defaultSpec, boolean several) {
    this.several = several;
    specs.put(DEFAULT, defaultSpec);
  }

  boolean areSeveral() {
    return several;
  }

  /** What is known of a family, null if nothing is. */
  FamilySpec get(String name) {
    return specs.get(name);
  }

  /** Remember a family. One that is known stays as it is. */
  void add(FamilySpec spec) {
    checkName("create_col_family", spec.name(), spec.internal());
    specs.putIfAbsent(spec.name(), spec);
  }

  void remove(String name) {
    checkName("remove_col_family", name, false);
    specs.remove(name);
  }

  /** Refuse to use a family that is not known. */
  void checkUse(String operation, String name) {
    checkSeveral(operation);
    if (isNoName(name)) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name);
    }
    if (!specs.containsKey(name)) {
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name);
    }
  }

  private void checkName(String operation, String name, boolean internal) {
    checkSeveral(operation);
    if (isNoName(name) || name.equals(DEFAULT) && !internal) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name);
    }
    if (!internal && name.charAt(0) == '$') {
      throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name);
    }
  }

  private void checkSeveral(String operation) {
    if (!several) {
      throw StateStoreErrors.unsupportedOperationException(operation, "the store has one column family");
    }
  }

  private static boolean isNoName(String name) {
    return name.isEmpty() || !name.trim().equals(name);
  }
}
