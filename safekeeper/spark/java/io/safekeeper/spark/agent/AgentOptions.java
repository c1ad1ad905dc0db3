package io.safekeeper.spark.agent;

/**
 * What an agent needs to know to be started and asked.
 *
 * @param python the interpreter that runs it
 * @param pythonSetting the name of the setting that chooses the interpreter, for messages
 * @param url the backend
 * @param queueBytes how many bytes of commits it holds at most
 * @param startMillis how long it may take until it is ready
 * @param retryMillis for how long a request is sent again that does not get on, while the agent or the store is away
 * @param silentMillis for how long it may say nothing in the middle of a request until it counts as hanging
 */
public record AgentOptions(
    String python,
    String pythonSetting,
    String url,
    long queueBytes,
    long startMillis,
    long retryMillis,
    long silentMillis) {

  /** Options with the same key can share one agent. */
  String key() {
    return String.join("\n", python, url, "" + queueBytes, "" + retryMillis, "" + silentMillis);
  }

  /** Without the URL, which may hold a password. */
  @Override
  public String toString() {
    return "AgentOptions[" + python + "]";
  }
}
