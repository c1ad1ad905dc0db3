"""Studies that nothing else tries say how they are called."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "claims_overhead",
        "hdfs_overhead",
        "hdfs_threads",
        "langgraph_savers",
        "peace",
        "peace_simulator",
        "scan_overhead",
    ],
)
def test_a_study_tells_what_it_takes(name):
    command = [sys.executable, "-m", f"safekeeper.bench.studies.{name}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
