"""The study of services runs, on few states, and says what it has found."""

from __future__ import annotations

import subprocess
import sys


def test_a_keeper_is_compared_with_what_is_used_by_hand(tmp_path):
    options = ["--states", "100", "--saves", "3", "--rounds", "1", "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "safekeeper.bench.studies.services", *options]
    said = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    for arm in ("safekeeper", "sqlite3", "lmdb", "diskcache"):
        assert said.count(f"│ {arm} ") == 5, said
    assert "lines of code: safekeeper 13, sqlite3 " in said
    assert said.count("goal ") == 4, said
