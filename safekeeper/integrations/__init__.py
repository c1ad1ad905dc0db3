"""What others build on: a folder each, over any backend. None of it is imported unless it is asked for.

- `langgraph`: LangGraph's checkpoints, by `safekeeper.langgraph`. Read `layout.py` first, then `values.py`, `thread.py`
  and `saver.py`.
- `filesystem`: files in a store, for whatever speaks fsspec, by `safekeeper.fsspec`. Read `docs/file-systems.md` first.
"""
