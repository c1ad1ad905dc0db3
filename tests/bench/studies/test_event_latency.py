from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import safekeeper


def test_the_script_prints_how_long_events_waited(tmp_path):
    output = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "safekeeper.bench.studies.event_latency", "--megabytes", "2", "--rounds", "1"]
    command += ["--seconds", "0.1", "--parts", "1", "64", "--json", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(Path(safekeeper.__file__).parent.parent)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
    assert "64 elements: mean latency one by one" in done.stdout
    for parts in ("1", "64"):
        arms = json.loads(output.read_text())[parts]
        assert list(arms) == ["none", "whole", "all at once", "one by one"]
        assert all(arm["longest"][0] >= arm["p99"][0] for arm in arms.values())
