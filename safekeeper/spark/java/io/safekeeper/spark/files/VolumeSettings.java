package io.safekeeper.spark.files;

import io.safekeeper.spark.PythonChoice;
import io.safekeeper.spark.agent.AgentOptions;
import java.io.IOException;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;

/**
 * What a user can set, all under {@code fs.safekeeper.}; for Spark with {@code spark.hadoop.} before it. Names and
 * defaults are those of the state store, so that both share an agent.
 */
record VolumeSettings(Configuration conf) {
  static final String PREFIX = "fs.safekeeper.";

  /** What the agent is started with. */
  AgentOptions agent() throws IOException {
    return new AgentOptions(
        PythonChoice.of(get("python")),
        PREFIX + "python",
        url(),
        number("queueBytes", 128 << 20, 1),
        number("agentStartMs", 60_000, 1),
        number("retryMs", 60_000, 1),
        number("agentSilentMs", 60_000, 3000));
  }

  private String url() throws IOException {
    return get("url").orElseThrow(() -> new IOException(
        "which store has the files? set " + PREFIX + "url, such as log:///var/lib/app; in Spark, spark.hadoop." + PREFIX
            + "url"));
  }

  private long number(String name, long otherwise, long least) throws IOException {
    Optional<String> text = get(name);
    try {
      long value = text.map(Long::parseLong).orElse(otherwise);
      if (value >= least) {
        return value;
      }
    } catch (NumberFormatException error) {
      throw new IOException(PREFIX + name + "=" + text.get() + ": it takes a number", error);
    }
    throw new IOException(PREFIX + name + "=" + text.get() + ": it takes a number from " + least + " on");
  }

  private Optional<String> get(String name) {
    return Optional.ofNullable(conf.getTrimmed(PREFIX + name)).filter(value -> !value.isEmpty());
  }
}
