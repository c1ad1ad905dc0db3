"""LangGraph's checkpoints in any backend. `layout.py` has the layout, its rules and the attacks on it."""
