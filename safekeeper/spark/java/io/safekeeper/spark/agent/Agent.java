package io.safekeeper.spark.agent;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The Python process beside this executor that keeps commits in the backend; one for each URL, shared by all
 * partitions.
 *
 * <p>It is started when it is first needed and again when it has died; what was under way is then sent again, which
 * is harmless since a commit is written once under an id of its own. Its standard input is a pipe from this JVM, so
 * it ends when the JVM does, however that happens.
 */
public final class Agent {
  private static final Logger LOG = LoggerFactory.getLogger(Agent.class);
  private static final Map<String, Agent> AGENTS = new ConcurrentHashMap<>();
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int IDLE_CONNECTIONS = 32;
  private static final int LONGEST_SOCKET_PATH = 100; // the kernel takes 107 bytes
  private static final long STOP_SECONDS = 5;

  private final AgentOptions options;
  private final ArrayDeque<AgentConnection> idle = new ArrayDeque<>();
  private Process process;
  private Path socket;
  private String scope;
  private int restarts;
  private boolean wasStarted;
  private IOException away; // how the last start ended, if that was because the store is away
  private long awaySince;

  private Agent(AgentOptions options) {
    this.options = options;
    Runtime.getRuntime().addShutdownHook(new Thread(this::stop, "safekeeper-agent-stop"));
  }

  /** The agent for these options, one for all that can share it. */
  public static Agent of(AgentOptions options) {
    return AGENTS.computeIfAbsent(options.key(), unused -> new Agent(options));
  }

  /** Who sees what the backend writes, as the agent said: PROCESS, HOST or NETWORK. Starts the agent. */
  public String scope() throws IOException {
    return ask(unused -> scope);
  }

  /** How often the agent had to be started again since this was last asked. */
  public synchronized int takeRestarts() {
    int taken = restarts;
    restarts = 0;
    return taken;
  }

  /** The id of the agent's process, 0 when there is none now. */
  public synchronized long pid() {
    return process != null && process.isAlive() ? process.pid() : 0;
  }

  /**
   * Send a request, and send it again for a while when the agent dies or hangs or the store is unavailable.
   *
   * <p>For how long counts from when it last got on: when an answer came that was not there before, or when it was first
   * lost. A request that gets on takes as long as it takes.
   */
  public <T> T ask(AgentRequest<T> request) throws IOException {
    long patience = TimeUnit.MILLISECONDS.toNanos(options.retryMillis());
    Attempts attempts = new Attempts();
    for (long wait = 10; ; wait = Math.min(2 * wait, 1000)) {
      try {
        return askOnce(request, attempts);
      } catch (IOException error) {
        boolean hopeless = error instanceof AgentException answer && !answer.isWorthRetrying();
        if (hopeless || Thread.currentThread().isInterrupted() || System.nanoTime() - attempts.gotOn > patience) {
          throw error;
        }
        LOG.warn("The agent did not do what it was asked, trying again: {}", error.toString());
        sleep(wait, error);
      }
    }
  }

  /** How a request got on that is sent again and again. */
  private static final class Attempts {
    private long gotOn = System.nanoTime();
    private int replies; // of the attempt that got furthest
    private boolean lost;

    /** One more has failed. */
    void add(AgentConnection connection, IOException error) {
      if (connection != null && connection.replies() > replies) {
        replies = connection.replies();
        gotOn = connection.moved();
      }
      if (!(error instanceof AgentException) && !lost) {
        gotOn = System.nanoTime(); // a request that was lost is sent again, however long it had taken
        lost = true;
      }
    }
  }

  private <T> T askOnce(AgentRequest<T> request, Attempts attempts) throws IOException {
    AgentConnection connection = null;
    boolean usable = false;
    try {
      connection = connect();
      T answer = request.send(connection);
      usable = true;
      return answer;
    } catch (IOException error) {
      attempts.add(connection, error);
      if (error instanceof SilentAgent) {
        replace(connection.socket(), true);
      } else if (error instanceof AgentException answer && answer.needsNewAgent()) {
        replace(connection.socket(), false);
      }
      throw error;
    } finally {
      if (connection != null) {
        release(connection, usable);
      }
    }
  }

  /** End the agent that listens there, so that the next request starts another; unless somebody has done so already. */
  private synchronized void replace(Path listens, boolean hangs) {
    if (!listens.equals(socket) || process == null) {
      return;
    }
    if (hangs) {
      LOG.error("Agent {} hangs and is replaced", process.pid());
      process.destroyForcibly(); // it would not notice that its standard input ends
    }
    stop();
  }

  private AgentConnection connect() throws IOException {
    return connect(System.nanoTime());
  }

  private synchronized AgentConnection connect(long asked) throws IOException {
    ensureRunning(asked);
    AgentConnection connection = idle.poll();
    return connection != null ? connection : new AgentConnection(socket, options.silentMillis());
  }

  private synchronized void release(AgentConnection connection, boolean usable) {
    if (usable && idle.size() < IDLE_CONNECTIONS && connection.socket().equals(socket)) {
      idle.push(connection);
    } else {
      closeQuietly(connection);
    }
  }

  /** For who has asked at that time: one start that waited for a store in vain is an answer to all who waited for it. */
  private void ensureRunning(long asked) throws IOException {
    if (process == null || !process.isAlive()) {
      if (away != null && asked - awaySince < 0) {
        throw new IOException(away.getMessage(), away);
      }
      stop();
      start();
    }
  }

  private void start() throws IOException {
    Path folder = Files.createTempDirectory("safekeeper-"); // of mode 0700
    if (folder.toString().length() > LONGEST_SOCKET_PATH - 2) {
      Files.delete(folder);
      folder = Files.createTempDirectory(Path.of("/tmp"), "safekeeper-");
    }
    socket = folder.resolve("s");
    String python = options.python();
    ProcessBuilder builder = new ProcessBuilder(python, "-m", "safekeeper.agent", socket.toString());
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    try {
      process = builder.start();
    } catch (IOException error) {
      removeSocket();
      throw new IllegalStateException(
          "the Python interpreter " + python + " does not start: set " + options.pythonSetting()
              + ", spark.pyspark.python or PYSPARK_PYTHON to one that has safekeeper installed",
          error);
    }
    restarts += wasStarted ? 1 : 0;
    wasStarted = true;
    OutputStream input = process.getOutputStream();
    String line = JSON.writeValueAsString(Map.of(
        "url", options.url(), "queue_bytes", options.queueBytes(), "retry_seconds", options.retryMillis() / 1000.0));
    try {
      input.write((line + "\n").getBytes(StandardCharsets.UTF_8));
      input.flush();
    } catch (IOException error) {
      LOG.debug("The agent ended before it read its options", error); // its answer says more
    }
    JsonNode ready = awaitReady(python);
    checkVersion(python, ready.path("version").asInt());
    away = null;
    scope = ready.path("scope").asText();
    LOG.info("Agent {} is ready: scope {}, survives {}", process.pid(), scope, ready.path("survives"));
  }

  private void checkVersion(String python, int version) {
    if (version != AgentConnection.VERSION) {
      stop();
      throw new IllegalStateException(
          "the safekeeper of " + python + " speaks version " + version + " of the agent's protocol, and this jar version "
              + AgentConnection.VERSION + ": install the same safekeeper for the Spark driver and the executors");
    }
  }

  private JsonNode awaitReady(String python) throws IOException {
    BufferedReader output = process.inputReader(StandardCharsets.UTF_8);
    CompletableFuture<String> line = new CompletableFuture<>();
    Thread reader = new Thread(() -> drain(output, line), "safekeeper-agent-output");
    reader.setDaemon(true);
    reader.start();
    String answer;
    try {
      answer = line.get(options.startMillis(), TimeUnit.MILLISECONDS);
    } catch (TimeoutException error) {
      stop();
      throw new IOException("the agent was not ready after " + options.startMillis() + " ms", error);
    } catch (ExecutionException error) {
      stop();
      throw new IOException("the agent could not be started", error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt(); // whoever asked gives up, and so does the wait for the end
      stop();
      throw new IOException("interrupted while the agent started", error);
    }
    JsonNode ready = answer.startsWith("{") ? JSON.readTree(answer) : JSON.createObjectNode();
    if (ready.path("ready").asBoolean()) {
      return ready;
    }
    boolean killed = wasKilled();
    stop();
    if (killed) {
      throw new IOException("the agent was killed while it started");
    }
    String opened = "the backend cannot be opened: " + ready.path("error").asText();
    if (ready.path("away").asBoolean()) {
      away = new IOException(opened); // it may come back
      awaySince = System.nanoTime();
      throw away;
    }
    throw new IllegalStateException(
        ready.has("error")
            ? opened
            : python + " -m safekeeper.agent did not start, its standard error says why: is safekeeper installed for"
                + " that interpreter? " + options.pythonSetting() + " chooses another one");
  }

  /** Whether a signal ended the agent, which says nothing against starting it again. */
  private boolean wasKilled() throws IOException {
    try {
      return process.waitFor(STOP_SECONDS, TimeUnit.SECONDS) && process.exitValue() > 128;
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while the agent started", error);
    }
  }

  /** Complete {@code first} with the first line, then read until the end so that the agent never waits for us. */
  private static void drain(BufferedReader output, CompletableFuture<String> first) {
    try (output) {
      String line = output.readLine();
      first.complete(line == null ? "" : line);
      while (line != null) {
        line = output.readLine();
      }
    } catch (IOException error) {
      first.completeExceptionally(error);
    }
  }

  /** End the agent; it finishes the writes that it has begun. */
  private synchronized void stop() {
    for (AgentConnection connection : idle) {
      closeQuietly(connection);
    }
    idle.clear();
    if (process == null) {
      return;
    }
    closeQuietly(process.getOutputStream());
    try {
      if (!process.waitFor(STOP_SECONDS, TimeUnit.SECONDS)) {
        process.destroyForcibly();
      }
    } catch (InterruptedException error) {
      process.destroyForcibly();
      Thread.currentThread().interrupt();
    }
    process = null;
    removeSocket();
  }

  private void removeSocket() {
    try {
      Files.deleteIfExists(socket);
      Files.deleteIfExists(socket.getParent());
    } catch (IOException error) {
      LOG.debug("The agent's folder stays behind", error);
    }
  }

  private static void closeQuietly(Closeable closeable) {
    try {
      closeable.close();
    } catch (IOException error) {
      LOG.debug("Closing failed", error);
    }
  }

  private static void sleep(long millis, IOException reason) throws IOException {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw reason;
    }
  }
}
