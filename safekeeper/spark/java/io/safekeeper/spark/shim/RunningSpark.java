package io.safekeeper.spark.shim;

/** The Spark that runs, which need not be the one whose jar it was given. */
final class RunningSpark {
  private RunningSpark() {}

  /** Refuse another minor version than the jar was made for, before one of its methods is missing. */
  static void check() {
    String version = org.apache.spark.package$.MODULE$.SPARK_VERSION();
    if (!version.startsWith(MinorShim.MINOR + ".")) {
      throw new IllegalStateException(
          "safekeeper's jar is for Spark " + MinorShim.MINOR + ", and this is Spark " + version
              + ": set SPARK_HOME to this one before you run `python -m safekeeper.spark`");
    }
  }
}
