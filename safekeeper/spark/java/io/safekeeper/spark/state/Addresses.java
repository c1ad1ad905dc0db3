package io.safekeeper.spark.state;

/** Addresses of records, one after the other. They do not change when the store does. */
public interface Addresses extends AutoCloseable {
  /** The next address, or 0 when there is none. */
  int next();

  /** Nothing more will be asked for. Closing twice is not an error. */
  @Override
  default void close() {}

  static Addresses of(int[] addresses) {
    return new Addresses() {
      private int at;

      @Override
      public int next() {
        return at < addresses.length ? addresses[at++] : 0;
      }
    };
  }
}
