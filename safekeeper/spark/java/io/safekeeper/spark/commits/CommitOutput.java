package io.safekeeper.spark.commits;

import java.io.IOException;
import java.nio.ByteBuffer;

/** Takes the values of a commit in order, the head last. The array of a value is the taker's from then on. */
interface CommitOutput {
  void part(int number, ByteBuffer value) throws IOException;

  void head(ByteBuffer value) throws IOException;

  /** A buffer for the next value, perhaps one of a value that is done with. */
  default ByteBuffer buffer(int capacity) {
    return ByteBuffer.allocate(capacity);
  }
}
