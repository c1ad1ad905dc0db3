package io.safekeeper.spark;

import io.safekeeper.spark.commits.CommitHead;
import io.safekeeper.spark.commits.CommitKey;
import io.safekeeper.spark.commits.CommitReader;
import io.safekeeper.spark.commits.Commits;
import io.safekeeper.spark.commits.History;
import io.safekeeper.spark.state.Record;
import io.safekeeper.spark.state.ValueList;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Queue;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import org.apache.spark.sql.execution.streaming.state.RecordType;
import org.apache.spark.util.NextIterator;
import scala.Enumeration;
import scala.Tuple4;

/**
 * The changes of a chain of commits, one for each put and remove, in order. What the cleaner moved is no change.
 *
 * <p>A list that was put comes as one put and, from its second value on, merges.
 */
final class ChangeFeed extends NextIterator<Tuple4<Enumeration.Value, UnsafeRow, UnsafeRow, Object>> {
  private final Commits commits;
  private final History history;
  private final Iterator<CommitKey> chain;
  private final FamilySpec spec;
  private final int family;
  private final Queue<byte[]> blocks = new ArrayDeque<>(); // what is left of the records of a commit
  private final Queue<Tuple4<Enumeration.Value, UnsafeRow, UnsafeRow, Object>> changes = new ArrayDeque<>();
  private long batch; // of that commit

  /**
   * @param family the number of the column family whose changes are wanted
   * @param spec what it holds
   */
  ChangeFeed(Commits commits, History history, List<CommitKey> chain, int family, FamilySpec spec) {
    this.commits = commits;
    this.history = history;
    this.chain = chain.iterator();
    this.family = family;
    this.spec = spec;
  }

  @Override
  public Tuple4<Enumeration.Value, UnsafeRow, UnsafeRow, Object> getNext() {
    while (changes.isEmpty() && (!blocks.isEmpty() || chain.hasNext())) {
      if (blocks.isEmpty()) {
        read(chain.next());
      } else {
        addChanges(blocks.remove()); // one at a time: rows take several times the memory of their bytes
      }
    }
    finished_$eq(changes.isEmpty());
    return changes.poll();
  }

  @Override
  public void close() {
    blocks.clear();
    changes.clear();
  }

  private void read(CommitKey key) {
    batch = key.version() - 1;
    try {
      commits.read(List.of(key), history, new CommitReader() {
        @Override
        public void records(byte[] bytes, int from, int to) {
          blocks.add(Arrays.copyOfRange(bytes, from, to)); // the buffer is used again for the next block
        }

        @Override
        public void end(CommitKey commit, CommitHead head) {}
      });
    } catch (IOException | RuntimeException error) {
      Path place = new Path(commits.group(), String.valueOf(key.version()));
      throw Sneaky.sneak(QueryExecutionErrors.failedToReadStreamingStateFileError(place, error));
    }
  }

  private void addChanges(byte[] bytes) {
    for (int record = 0; record < bytes.length; record += Record.checkedSize(bytes, record, bytes.length)) {
      long at = Record.at(record);
      if (Record.family(bytes, at) == family && !Record.isCleaned(bytes, at)) {
        addChange(bytes, at);
      }
    }
  }

  private void addChange(byte[] bytes, long record) {
    long at = Record.valueAt(bytes, record);
    int length = Record.valueLength(bytes, record);
    if (Record.isTombstone(bytes, record)) {
      add(RecordType.DELETE_RECORD(), bytes, record, null);
    } else if (!spec.multiple()) {
      add(RecordType.PUT_RECORD(), bytes, record, row(bytes, at, length));
    } else {
      int added = Record.added(bytes, record);
      Enumeration.Value type = added == 0 ? RecordType.PUT_RECORD() : RecordType.MERGE_RECORD();
      int size = added == 0 ? length : added;
      UnsafeRow row = new UnsafeRow(spec.valueFields());
      ValueList.Rows rows = new ValueList.Rows(bytes, at + length - size, size, row);
      while (rows.hasNext()) {
        add(type, bytes, record, rows.next().copy());
        type = RecordType.MERGE_RECORD();
      }
    }
  }

  private void add(Enumeration.Value type, byte[] bytes, long record, UnsafeRow value) {
    UnsafeRow key = new UnsafeRow(spec.keyFields());
    key.pointTo(bytes, Record.keyAt(bytes, record), Record.keyLength(bytes, record));
    changes.add(new Tuple4<>(type, key, value, batch));
  }

  private UnsafeRow row(byte[] bytes, long at, int length) {
    UnsafeRow row = new UnsafeRow(spec.valueFields());
    row.pointTo(bytes, at, length);
    return row;
  }
}
