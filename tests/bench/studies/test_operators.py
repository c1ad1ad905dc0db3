"""The studies of operators run, on few events, and say what they have found."""

import subprocess
import sys


def run(study, *arguments):
    command = [sys.executable, "-m", f"safekeeper.bench.studies.{study}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_operator_is_compared_with_a_bare_loop():
    said = run("operator_cost", "--quick", "--events", "500")
    for arm in ("bare loop", "memory:, own loop", "log:, iteration", "journal on log:"):
        assert f"│ {arm} " in said
    assert said.count("p50 at ") == 3


def test_its_profile_is_shown():
    assert "core.py" in run("operator_cost", "--quick", "--events", "500", "--profile")
