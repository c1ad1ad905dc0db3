package io.safekeeper.spark.agent;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;

/** Requests that fail, one attempt after the other. */
public final class Attempted {
  private static final byte[] KEY = "key".getBytes(StandardCharsets.US_ASCII);

  private Attempted() {}

  /**
   * Ask for values until an attempt succeeds: the store is unavailable in all but the last one, each of which takes so
   * long. An attempt gets one value, or one more than the attempt before.
   *
   * @return how many attempts there were
   */
  public static int ask(Agent agent, int attempts, long millis, boolean getsOn) throws IOException {
    int[] made = {0};
    return agent.ask(connection -> {
      made[0]++;
      connection.read("attempted", Collections.nCopies(getsOn ? made[0] : 1, KEY));
      sleep(millis);
      if (made[0] < attempts) {
        throw new AgentException(AgentException.Code.UNAVAILABLE, "attempt " + made[0]);
      }
      return made[0];
    });
  }

  private static void sleep(long millis) {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }
}
