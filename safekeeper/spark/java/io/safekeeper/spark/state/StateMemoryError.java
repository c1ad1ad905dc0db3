package io.safekeeper.spark.state;

/**
 * There is no room for more state: the budget is used up, or the disk is full. Not the JVM's own lack of memory, but it
 * ends a change in the same way. The message says what to do.
 */
public final class StateMemoryError extends OutOfMemoryError {
  private static final long serialVersionUID = 1L;

  private final long wanted;
  private final long left;

  StateMemoryError(String message, long wanted, long left) {
    super(message);
    this.wanted = wanted;
    this.left = left;
  }

  /** How many bytes were asked for. */
  public long wanted() {
    return wanted;
  }

  /** How many of them there were. */
  public long left() {
    return left;
  }
}
