package io.safekeeper.spark.agent;

import java.io.IOException;

/** The agent lives and says nothing in the middle of a request, not even that it is alive: it hangs. */
final class SilentAgent extends IOException {
  private static final long serialVersionUID = 1L;

  SilentAgent(long millis) {
    super("the agent said nothing for " + millis + " ms in the middle of a request: it hangs, or is stopped");
  }
}
