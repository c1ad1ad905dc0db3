"""The conformance kit: what a backend must do, as a pytest class to inherit, and wrappers that slow or break a backend.

    from safekeeper.testing import BackendContract

    class TestFile(BackendContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"file://{tmp_path}/store"

`docs/writing-a-backend.md` tells how to go about it. `pip install 'safekeeper[testing]'` brings what the class needs;
the wrappers need nothing. `StreamContract` is the same for what carries a stream.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from safekeeper.testing.ids import AWKWARD_GROUPS, AWKWARD_IDS, AWKWARD_KEYS
from safekeeper.testing.wrappers import Faulty, Gate, Slow

if TYPE_CHECKING:
    from safekeeper.testing.contract import BackendContract
    from safekeeper.testing.streams import StreamContract

__all__ = [
    "AWKWARD_GROUPS",
    "AWKWARD_IDS",
    "AWKWARD_KEYS",
    "BackendContract",
    "Faulty",
    "Gate",
    "Slow",
    "StreamContract",
]

_KITS = {"BackendContract": "contract", "StreamContract": "streams"}


def __getattr__(name: str) -> Any:
    # Late, so that the child processes of the tests start without pytest and Hypothesis, and so that the wrappers can
    # be used where these are not installed.
    if name not in _KITS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest

        module = f"{__name__}.{_KITS[name]}"
        pytest.register_assert_rewrite(module)
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pytest", "hypothesis"):
            raise
        raise ImportError(f"{name} needs {error.name}: pip install 'safekeeper[testing]'") from error
