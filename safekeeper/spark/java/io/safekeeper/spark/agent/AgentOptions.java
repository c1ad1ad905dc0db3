package io.safekeeper.spark.agent;

/**
 * What an agent needs to know to be started and asked.
 *
 * @param python the interpreter that runs it
 * @param pythonSetting the name of the setting that chooses the interpreter, for messages
 * @param url the backend
 * @param queueBytes how many bytes of commits it holds at most
 * @param startMillis how long it may take until it is ready
 * @param retryMillis for how long a request is sent again while the agent or the store is unavailable
 */
public record AgentOptions(
    String python, String pythonSetting, String url, long queueBytes, long startMillis, long retryMillis) {

  /** Options with the same key can share one agent. */
  String key() {
    return String.join("\n", python, url, "" + queueBytes, "" + retryMillis);
  }

  /** Without the URL, which may hold a password. */
  @Override
  public String toString() {
    return "AgentOptions[" + python + "]";
  }
}
