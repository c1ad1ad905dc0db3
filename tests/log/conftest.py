from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _modules_of_these_tests_for_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find what runs inside of them."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
