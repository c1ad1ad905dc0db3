"""The process that serves a backend to a JVM over a Unix socket. `docs/agent.md` is its protocol.

    python -m safekeeper.agent SOCKET       started by the Spark bridge, one beside each executor

`frames` turns requests and replies into bytes, `server` answers them, `__main__` is the process around it.
"""
