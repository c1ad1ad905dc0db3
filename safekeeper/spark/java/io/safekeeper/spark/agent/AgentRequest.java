package io.safekeeper.spark.agent;

import java.io.IOException;

/** Something that is asked of the agent. It may be asked more than once. */
public interface AgentRequest<T> {
  T send(AgentConnection connection) throws IOException;
}
