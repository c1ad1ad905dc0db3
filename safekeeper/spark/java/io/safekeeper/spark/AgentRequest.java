package io.safekeeper.spark;

import java.io.IOException;

/** Something that is asked of the agent. It may be asked more than once. */
interface AgentRequest<T> {
  T send(AgentConnection connection) throws IOException;
}
