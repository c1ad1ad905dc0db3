package io.safekeeper.spark;

import java.util.HashMap;
import java.util.Map;

/** Opens a provider, prints its agent's process id, and waits to be ended. */
public final class TestMain {
  private TestMain() {}

  /** Takes the checkpoint's folder and settings as {@code name=value}. */
  public static void main(String[] args) throws InterruptedException {
    Map<String, String> settings = new HashMap<>();
    for (int i = 1; i < args.length; i++) {
      String[] pair = args[i].split("=", 2);
      settings.put(pair[0], pair[1]);
    }
    System.out.println(new TestProvider(args[0], settings, "plain", false, false).agentPid());
    Thread.currentThread().join();
  }
}
