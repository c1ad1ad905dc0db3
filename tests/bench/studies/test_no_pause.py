from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import safekeeper
from safekeeper.bench.studies import no_pause


@pytest.mark.skipif(not hasattr(os, "fork"), reason="one arm forks")
def test_the_script_prints_how_late_the_ticker_was(tmp_path):
    output = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "safekeeper.bench.studies.no_pause", "--megabytes", "2", "--rounds", "1"]
    command += ["--seconds", "0.05", "--parts", "1", "4", "--json", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(Path(safekeeper.__file__).parent.parent)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
    assert "p99.9 at most 5 ms above none's" in done.stdout
    for parts in ("1", "4"):
        arms = json.loads(output.read_text())[parts]
        assert set(arms) == {"none", "whole", "slices", "fork"}
        sizes = {arms[name]["nbytes"] for name in ("whole", "slices", "fork")}
        assert len(sizes) == 1, "all of them save the same"
        assert sizes.pop() > 1_800_000
        assert len(arms["slices"]["longest"][0]) == 5


def test_a_state_has_about_the_size_that_is_asked_for():
    for parts in (1, 4):
        state = no_pause.states(1, parts)
        size = sum(len(no_pause.Whole().dumps(part)) for part in state)
        assert len(state) == parts
        assert 0.9 * (1 << 20) < size < 1.1 * (1 << 20)
