package io.safekeeper.spark.commits;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * The values of a chain of commits in the order in which they are read: of each the head, which says how the rest is to
 * be read, then the parts. A listing said how many there are, so those of the next commits need not wait for a head;
 * it may have missed the last ones of a commit that was new, and these are read when the head says so.
 */
final class ValuesOfChain implements ReadAhead.ValueSink {
  private static final int HEAD = -1;

  private final History history;
  private final CommitReader reader;
  private final ReadAhead.ValueSource source;
  private final List<ChainValue> values = new ArrayList<>();
  private CommitKey read; // a commit after all others whose head is here already
  private byte[] readHead;
  private long skipped; // bytes at the beginning of the first commit
  private CommitHead head; // of the commit that is being read, and its value
  private byte[] headValue;
  private CommitFormat.Decoder decoder;

  private record ChainValue(CommitKey key, int part) {}

  ValuesOfChain(History history, CommitReader reader, ReadAhead.ValueSource source) {
    this.history = history;
    this.reader = reader;
    this.source = source;
  }

  /** The first commit's first bytes are not wanted. */
  void skip(long bytes) {
    skipped = bytes;
  }

  void add(CommitKey key) {
    values.add(new ChainValue(key, HEAD));
    addParts(key);
  }

  /** The last one, whose head was read before. */
  void addRead(CommitKey key, byte[] value) {
    read = key;
    readHead = value;
    addParts(key);
  }

  private void addParts(CommitKey key) {
    for (int part = 0; part < history.partsOf(key); part++) {
      values.add(new ChainValue(key, part));
    }
  }

  List<byte[]> names() {
    return values.stream().map(value -> value.part == HEAD ? value.key.bytes() : value.key.part(value.part)).toList();
  }

  boolean isPart(int index) {
    return values.get(index).part != HEAD;
  }

  @Override
  public void accept(int index, byte[] value) throws IOException {
    ChainValue what = values.get(index);
    byte[] found = Commits.present(what.key, value);
    if (what.part == HEAD) {
      begin(what.key, found);
    } else {
      if (what.key.equals(read) && decoder == null) {
        begin(read, readHead);
      }
      decoder.part(found);
    }
    boolean whole = index + 1 == values.size() || !values.get(index + 1).key.equals(what.key);
    if (whole) {
      endCommit(what.key);
    }
  }

  /** All values were read. */
  void end() throws IOException {
    if (read != null && history.partsOf(read) == 0) {
      begin(read, readHead);
      endCommit(read);
    }
  }

  private void begin(CommitKey key, byte[] value) {
    head = CommitFormat.head(value);
    if (head.parts() < history.partsOf(key)) {
      throw notWhatItSays(key);
    }
    headValue = value;
    decoder = new CommitFormat.Decoder(head.codec(), skipped, reader);
    skipped = 0;
  }

  private void endCommit(CommitKey key) throws IOException {
    for (int part = history.partsOf(key); part < head.parts(); part++) {
      decoder.part(Commits.present(key, source.read(List.of(key.part(part))).get(0)));
    }
    if (decoder.head(headValue) != head.rawBytes() || head.version() != key.version()) {
      throw notWhatItSays(key);
    }
    decoder = null;
    reader.end(key, head);
  }

  private static IllegalStateException notWhatItSays(CommitKey key) {
    return new IllegalStateException("the commit of " + key + " is not what its key says");
  }
}
