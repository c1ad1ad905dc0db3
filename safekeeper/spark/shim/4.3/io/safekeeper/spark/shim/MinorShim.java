package io.safekeeper.spark.shim;

/** For which minor version of Spark a jar was made. */
public final class MinorShim {
  public static final String MINOR = "4.3";

  private MinorShim() {}
}
