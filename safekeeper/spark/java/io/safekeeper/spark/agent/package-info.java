/**
 * The client of the agent, the Python process beside an executor that keeps values in a backend.
 *
 * <p>It knows nothing of commits or states: it puts, deletes, lists and reads values under keys, and files. A frame is a message
 * on the connection; {@code docs/agent.md} has the protocol.
 *
 * <p>Read {@code Agent} first (starts the process, sends a request again when it has to), then {@code AgentConnection}
 * (the frames), {@code AgentFiles} (the requests about files), {@code AgentException} (what the agent answers when it
 * cannot do something) and {@code SilentAgent} (it answers nothing).
 */
package io.safekeeper.spark.agent;
