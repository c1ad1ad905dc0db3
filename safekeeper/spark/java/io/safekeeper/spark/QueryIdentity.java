package io.safekeeper.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;

/**
 * Whose state it is: the query's id, from the {@code metadata} file in its checkpoint, and where the checkpoint is.
 *
 * <p>A checkpoint folder that was deleted and made anew has another id, so it never meets the old state. A store without
 * a query around it has no such file, as in Spark's own tests: its id is made from the folder of the states themselves,
 * which all stores of one place share and no others.
 *
 * @param group the group that keeps the store's commits: {@code spark/QUERY/OPERATOR/PARTITION/STORE}
 * @param location the checkpoint's folder; without a query the folder of the states
 */
record QueryIdentity(String group, String location) {
  private static final int LONGEST_NAME = 128; // a group has at most 255 bytes

  static QueryIdentity of(StateStoreId id, Configuration conf) throws IOException {
    Path states = new Path(id.checkpointRootLocation());
    FileSystem files = states.getFileSystem(conf);
    Path checkpoint = states.getParent();
    String query = checkpoint == null ? null : queryId(files, new Path(checkpoint, "metadata"));
    String location = files.makeQualified(query == null ? states : checkpoint).toString();
    if (query == null) {
      query = UUID.nameUUIDFromBytes(location.getBytes(StandardCharsets.UTF_8)).toString();
    }
    String prefix = "spark/" + query + "/" + id.operatorId() + "/" + id.partitionId() + "/";
    return new QueryIdentity(prefix + plain(id.storeName()), location);
  }

  /** The id in that file, null if there is no such file. */
  private static String queryId(FileSystem files, Path metadata) throws IOException {
    try (InputStream stream = files.open(metadata)) {
      JsonNode id = new ObjectMapper().readTree(stream).path("id");
      return UUID.fromString(id.asText()).toString();
    } catch (FileNotFoundException error) {
      return null;
    } catch (IllegalArgumentException error) {
      throw new IllegalStateException(metadata + " has no query id", error);
    }
  }

  /** The store's name if it can be part of a group, else a name that is made from it. */
  private static String plain(String name) {
    byte[] bytes = name.getBytes(StandardCharsets.UTF_8);
    boolean fits = bytes.length <= LONGEST_NAME && name.chars().noneMatch(Character::isISOControl);
    return fits ? name : UUID.nameUUIDFromBytes(bytes).toString();
  }
}
