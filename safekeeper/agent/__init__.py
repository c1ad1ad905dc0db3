"""The process that serves a backend to a JVM over a Unix socket. `docs/agent.md` is its protocol.

    python -m safekeeper.agent SOCKET       started by the Spark bridge, one beside each executor

Read in this order: `protocol` (frames and their bytes), `answers` (what each request does), `files` (those of files),
`budget` (memory that is reserved before it is used), `server` (the socket), `__main__` (the process around it).
"""
