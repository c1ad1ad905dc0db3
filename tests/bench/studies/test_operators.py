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


def test_continuous_eventual_checkpoints_are_compared_with_a_model():
    said = run("eventual_checkpoints", "--quick", "--items", "50")
    for what in ("none", "q 8", "u 10 x items"):
        assert f": {what}: extent and replay within 10 % of the model" in said
    assert said.count("10 ms in every ") == 4
    assert said.count("windows of 1,000: ") == said.count("windows of 1: ") == 3
    assert said.count("recover_within=") == 3
