package io.safekeeper.spark;

/** Spark's errors are checked exceptions, and its interfaces, being Scala's, declare none. */
public final class Sneaky {
  private Sneaky() {}

  /** Throw {@code error}, whatever it is; the return type lets the caller write {@code throw}. */
  public static RuntimeException sneak(Throwable error) {
    throw Sneaky.<RuntimeException>as(error);
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E as(Throwable error) throws E {
    throw (E) error;
  }
}
