"""The studies that show what Peace and `hdfs:` do say how they are called."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["hdfs_overhead", "peace", "peace_simulator"])
def test_a_study_tells_what_it_takes(name):
    command = [sys.executable, "-m", f"safekeeper.bench.studies.{name}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
