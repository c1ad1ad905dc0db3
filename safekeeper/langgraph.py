"""LangGraph's checkpoints in any backend; needs `pip install 'safekeeper[langgraph]'`.

from safekeeper.langgraph import SafeKeeperSaver

with SafeKeeperSaver("log:///var/lib/agents") as saver:
    graph = builder.compile(checkpointer=saver)
"""

from safekeeper.integrations.langgraph.saver import SafeKeeperSaver

__all__ = ["SafeKeeperSaver"]
