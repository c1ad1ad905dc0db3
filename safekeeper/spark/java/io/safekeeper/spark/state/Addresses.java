package io.safekeeper.spark.state;

import java.util.stream.IntStream;

/** Addresses of records, one after the other. They do not change when the store does. */
public interface Addresses extends AutoCloseable {
  /** The next address, or 0 when there is none. */
  int next();

  /** Nothing more will be asked for. Closing twice is not an error. */
  @Override
  default void close() {}

  /** Those that are left, which anybody may read whenever he likes: they share nothing with the store. */
  default Addresses copy() {
    return of(IntStream.iterate(next(), address -> address != 0, address -> next()).toArray());
  }

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
