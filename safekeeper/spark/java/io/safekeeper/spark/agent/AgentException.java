package io.safekeeper.spark.agent;

import java.io.IOException;

/** The agent answered that it could not do what was asked. */
public final class AgentException extends IOException {
  private static final long serialVersionUID = 1L;

  /** The kinds of failure, by their number in the protocol. */
  public enum Code {
    UNAVAILABLE,
    CORRUPTION,
    CONFLICT,
    CLOSED,
    TOO_LARGE,
    BAD_ID,
    BAD_FRAME,
    INTERNAL,
    NOT_FOUND,
    EXISTS,
    NOT_DIRECTORY,
    IS_DIRECTORY,
    NOT_EMPTY,
    REPLACED;

    static Code of(int number) {
      return number >= 1 && number <= values().length ? values()[number - 1] : INTERNAL;
    }
  }

  private final Code code;

  AgentException(Code code, String message) {
    super(code + ": " + message);
    this.code = code;
  }

  /** What kind of failure it is. */
  public Code code() {
    return code;
  }

  /** Whether the same request may succeed later. */
  boolean isWorthRetrying() {
    return code == Code.UNAVAILABLE || code == Code.BAD_FRAME || needsNewAgent();
  }

  /** Whether this agent's hold on the store is lost, and a new agent would get another. */
  boolean needsNewAgent() {
    return code == Code.CONFLICT || code == Code.CLOSED;
  }
}
