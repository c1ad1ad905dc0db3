from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _modules_of_these_tests_for_peers(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Processes that a test starts find what runs inside of them: this package, and nothing else of the clone."""
    folder = tmp_path_factory.getbasetemp() / "modules-for-peers"
    folder.mkdir(exist_ok=True)
    if not (folder / "tests").exists():
        (folder / "tests").symlink_to(TESTS)
    monkeypatch.syspath_prepend(folder)
