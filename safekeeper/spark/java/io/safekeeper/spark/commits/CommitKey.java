package io.safekeeper.spark.commits;

import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The key of a commit in the store. It says everything about the commit but its content, so one listing of the keys
 * shows every chain of commits.
 *
 * <pre>
 * commit_VERSION_ID_PARENT_OLDEST_TIME     the numbers with 19 decimal digits, the ids with 36 characters
 * part_VERSION_ID_NUMBER                   the parts of a commit that is too large for one value
 * </pre>
 *
 * <p>Keys sort by version. Frozen.
 *
 * @param version the version of the state after the commit
 * @param id a fresh UUID; a key is written once and never again
 * @param parent the id of the commit that this one is based on, {@link #NO_PARENT} if it is based on the empty state
 * @param oldest the oldest version whose commit is needed to load this one
 * @param time when it was made, in milliseconds since 1970, but later than what it is based on
 */
public record CommitKey(long version, String id, String parent, long oldest, long time) {
  public static final String NO_PARENT = "00000000-0000-0000-0000-000000000000";

  private static final Pattern COMMIT =
      Pattern.compile("commit_(\\d{19})_([0-9a-f-]{36})_([0-9a-f-]{36})_(\\d{19})_(\\d{19})");
  private static final Pattern PART = Pattern.compile("part_(\\d{19})_([0-9a-f-]{36})_(\\d{6})");

  byte[] bytes() {
    return String.format("commit_%019d_%s_%s_%019d_%019d", version, id, parent, oldest, time)
        .getBytes(StandardCharsets.US_ASCII);
  }

  byte[] part(int number) {
    return part(version, id, number);
  }

  /** The key of a part, which is known before the commit's own. */
  static byte[] part(long version, String id, int number) {
    return String.format("part_%019d_%s_%06d", version, id, number).getBytes(StandardCharsets.US_ASCII);
  }

  /** The commit that a key stands for; empty if it is a key of another kind. */
  static Optional<CommitKey> parse(byte[] key) {
    Matcher parts = COMMIT.matcher(new String(key, StandardCharsets.ISO_8859_1));
    return !parts.matches()
        ? Optional.empty()
        : Optional.of(new CommitKey(
            Long.parseLong(parts.group(1)),
            parts.group(2),
            parts.group(3),
            Long.parseLong(parts.group(4)),
            Long.parseLong(parts.group(5))));
  }

  /** The version of the commit that a part belongs to; empty if it is a key of another kind. */
  static Optional<Long> versionOfPart(byte[] key) {
    Matcher parts = PART.matcher(new String(key, StandardCharsets.ISO_8859_1));
    return parts.matches() ? Optional.of(Long.parseLong(parts.group(1))) : Optional.empty();
  }

  /** The id of the commit that a part belongs to; empty if it is a key of another kind. */
  static Optional<String> idOfPart(byte[] key) {
    Matcher parts = PART.matcher(new String(key, StandardCharsets.ISO_8859_1));
    return parts.matches() ? Optional.of(parts.group(2)) : Optional.empty();
  }

  /** Which part of its commit the key of a part is for. */
  static int numberOfPart(byte[] key) {
    Matcher parts = PART.matcher(new String(key, StandardCharsets.ISO_8859_1));
    if (!parts.matches()) {
      throw new IllegalArgumentException("this is not the key of a part");
    }
    return Integer.parseInt(parts.group(3));
  }

  @Override
  public String toString() {
    return "version " + version + " (" + id + ")";
  }
}
