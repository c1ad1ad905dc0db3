from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import safekeeper


def test_the_script_prints_what_a_save_costs():
    study = "safekeeper.bench.studies.keeper_overhead"
    command = [sys.executable, "-m", study, "--saves", "500", "--rounds", "1", "--profile"]
    environment = {**os.environ, "PYTHONPATH": str(Path(safekeeper.__file__).parent.parent)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
    for arm in ("the backend alone", "serializer raw, block", "serializer raw, coalesce"):
        assert f"\n{arm} " in done.stdout
    assert "where the threads were" in done.stdout
