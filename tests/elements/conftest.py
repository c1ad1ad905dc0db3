"""The fixtures of the keeper's tests: what stands on a keeper is tested with the same."""

from ..keeper.conftest import _no_thread_is_left, eventually, long_form, store

__all__ = ["_no_thread_is_left", "eventually", "long_form", "store"]
