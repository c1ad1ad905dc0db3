"""Checkpoints for tests, and a graph that makes them."""

import operator
from typing import Annotated, TypedDict

from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint


def config(thread, id=None, ns=""):
    named = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": named if id is None else {**named, "checkpoint_id": id}}


def put(saver, thread, values, parent=None, ns="", id=None, metadata=None):
    """Put a checkpoint with *values*; its config."""
    checkpoint = create_checkpoint(empty_checkpoint(), None, 1, id=id)
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, 1)
    about = {"source": "loop", "step": 1, "parents": {}, **(metadata or {})}
    return saver.put(config(thread, parent, ns), checkpoint, about, dict(checkpoint["channel_versions"]))


def values_of(saver, thread, id=None, ns=""):
    found = saver.get_tuple(config(thread, id, ns))
    return None if found is None else found.checkpoint["channel_values"]


def chat_graph(saver, size=2000):
    """A graph that answers every message with one of *size* characters."""
    from langchain_core.messages import AIMessage  # late: what is killed starts sooner without it
    from langgraph.graph import StateGraph
    from langgraph.graph.message import add_messages

    def answer(state):
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"{len(state['messages'])}{last.content}"[:10].ljust(size, "."))], "count": 1}

    class Chat(TypedDict):
        messages: Annotated[list, add_messages]
        count: Annotated[int, operator.add]

    graph = StateGraph(Chat)
    graph.add_node("answer", answer)
    graph.set_entry_point("answer")
    graph.set_finish_point("answer")
    return graph.compile(checkpointer=saver)


def say(graph, thread, text, size=2000):
    return graph.invoke({"messages": [("user", text.ljust(size, "?"))]}, {"configurable": {"thread_id": thread}})
