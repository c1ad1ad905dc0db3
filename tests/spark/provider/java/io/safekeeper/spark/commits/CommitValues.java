package io.safekeeper.spark.commits;

import io.safekeeper.spark.state.StateLog;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** The values of a commit as a store would keep them, the head last; for tests of the state log, in another package. */
public final class CommitValues {
  private CommitValues() {}

  /** The values of what the log has not committed yet. */
  public static List<byte[]> encode(StateLog log, long version, BlockCodec codec, int limit) {
    List<byte[]> values = new ArrayList<>();
    CommitOutput output = new CommitOutput() {
      @Override
      public void part(int part, ByteBuffer value) {
        if (part != values.size()) {
          throw new AssertionError("part " + part + " comes after " + values.size() + " parts");
        }
        head(value);
      }

      @Override
      public void head(ByteBuffer value) {
        byte[] copy = new byte[value.remaining()];
        value.get(copy);
        values.add(copy);
      }
    };
    try {
      CommitEncoder encoder = new CommitEncoder(codec, limit, log.uncommittedBytes(), output);
      long full = Math.max(log.fullPagesEnd(), log.current().position());
      encoder.add(log.walk(log.current().position(), full)); // in two steps, as while a batch runs
      encoder.add(log.walk(full, log.position()));
      encoder.finish(log, version);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return values;
  }

  /** What the head says. */
  public static CommitHead head(List<byte[]> values) {
    return CommitFormat.head(values.get(values.size() - 1));
  }

  /** Hand all records but the first {@code skipped} bytes to the sink; return how many bytes of records there are. */
  public static long decode(List<byte[]> values, long skipped, RecordSink sink) {
    CommitHead head = head(values);
    CommitFormat.Decoder decoder = new CommitFormat.Decoder(head.codec(), skipped, sink);
    for (int i = 0; i < head.parts(); i++) {
      decoder.part(values.get(i));
    }
    return decoder.head(values.get(values.size() - 1));
  }
}
