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
    assert "core.py" in run("operator_cost", "--quick", "--events", "5000", "--profile")


def test_continuous_eventual_checkpoints_are_compared_with_a_model():
    said = run("eventual_checkpoints", "--quick", "--items", "50")
    for what in ("none", "q 8", "u 10 x items"):
        assert f": {what}: extent and replay within 10 % of the model" in said
    assert said.count("10 ms in every ") == 4
    assert said.count("windows of 1,000: ") == said.count("windows of 1: ") == 3
    assert said.count("recover_within=") == 3


def test_rules_for_captures_are_simulated(tmp_path):
    said = run("minmax_simulator", "--quick", "--seconds", "2", "--plot", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text().count("<svg") == 2
    assert "worked example, thesis: mean 1.0272 s, peak 2.0781 s, u3 u3 u3 u3 u1 u3 u2 u3 u1 u3" in said
    assert said.count(" servers: paying at most ") == 10


def test_captures_of_changes_are_fitted(tmp_path):
    said = run("delta_captures", "--quick", "--plot", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2
    assert "(thesis: 18.6 and 7.3)" in page
    assert said.count(" is linear in both") == 2
    assert "a plateau at the window's size" in said


def test_the_steps_of_a_recovery_are_measured(tmp_path):
    said = run("recovery_steps", "--quick", "--plot", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text().count("Paper: ") == 2
    assert said.count(" redeployment ") == 3
    assert "detection takes " in said
    assert "warm, killed, " in said


def test_rules_for_captures_run_in_real_processes(tmp_path):
    said = run("minmax", "--quick", "--plot", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text().count("<svg") == 1
    assert said.count(" of what is simulated, ") == 2
    assert said.count(" pastes of ") == 2
    assert "the longest pause is " in said
