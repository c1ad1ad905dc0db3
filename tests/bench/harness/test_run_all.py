"""`safekeeper bench all`: every study runs, what it says is kept and shown, and nothing of it stays behind."""

import importlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from safekeeper import SafekeeperError
from safekeeper.bench import harness
from safekeeper.bench.harness.goals import Goal, beside, goals_in, verdicts_in
from safekeeper.bench.harness.machine import Machine, _program_versions
from safekeeper.bench.harness.page import page
from safekeeper.bench.harness.run_all import (
    INTERRUPTED,
    Study,
    StudyOutcome,
    dump_kept,
    joined,
    load_kept,
    run,
    run_all,
    run_apart,
    studies,
)

STUDY = Study("some", "What some costs.")
MACHINE = Machine.here()
NEWER = beside("size", "5 MB, thesis 4", "more", ", 1.2 x; newer")


def test_every_study_is_found_and_nothing_else():
    found = {study.name: study for study in studies()}
    assert {"ycsb_overhead", "lmdb_and_objects_overhead", "keeper_overhead", "redis_overhead", "thesis"} <= found.keys()
    assert (
        found["thesis"].title == "The measurements of the S4 thesis again, with its settings, ours beside its figures."
    )
    assert not {"recover", "cli", "runner", "run_all", "ids", "fluid", "__init__", "__main__"} & found.keys()


@pytest.mark.parametrize("name", [study.name for study in studies()])
def test_every_study_can_be_asked_how_it_is_used(name, monkeypatch, capsys):
    module = importlib.import_module(f"safekeeper.bench.studies.{name}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"safekeeper.bench.studies.{name}.__main__")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 0
    assert "--quick" in capsys.readouterr().out


def test_goals_are_read_from_what_a_study_prints():
    said = [Goal("fast: 3 x", True), Goal("small: no", False), Goal("huge, without --quick", None)]
    text = f"a table\n{said[0]}\nmore\n{said[1]}\ngoals met: all of them\n{said[2]}\n"
    assert list(goals_in(text)) == said


def test_the_page_says_what_is_met_what_is_not_and_what_did_not_run():
    fails = replace(STUDY, name="other")
    outcomes = [
        StudyOutcome(
            STUDY,
            True,
            MACHINE,
            "\n".join(map(str, ("12 ms", Goal("fast", False), Goal("a|b: 3 x", True), NEWER, Goal("huge", None)))),
            seconds=7,
        ),
        StudyOutcome(fails, False, MACHINE, "", "no module named redis"),
    ]
    text = page(outcomes)
    assert "1 met, 1 not met, 1 not measured. Studies that did not run to their end: other.\n" in text
    assert "## some\n\nWhat some costs.\n`" in text
    assert "- **not met**: fast\n- met: a|b: 3 x\n- more: size: 5 MB, thesis 4, 1.2 x; newer\n" in text
    assert "12 ms" not in text, "what a study prints besides is not kept"
    assert "It did not run to its end: no module named redis" in text
    assert f"`python -m safekeeper.bench.studies.some --quick`, 7 s, {MACHINE.date}." in text
    assert "few and short" in text
    assert "`python -m safekeeper.bench.studies.other`" in text
    assert text.count(MACHINE.what()) == 1


def test_the_page_has_no_machine_that_nobody_noted_and_says_the_conditions():
    unknown = Machine("some day", "", 2, 0, "", "", None)
    study = replace(STUDY, title="What it costs: `python -m safekeeper.bench.studies.some`.")
    text = page([StudyOutcome(study, False, unknown, "", conditions="three runs, " + "a load of 25 beside it, " * 9)])
    assert unknown.what() not in text
    assert (
        "What it costs.\n`python -m safekeeper.bench.studies.some`, some day; 2 cores, what else was not noted." in text
    )
    assert "\nThree runs, a load of 25" in text
    nothing = page([StudyOutcome(STUDY, False, replace(unknown, cores=0), "")])
    assert "some day; the machine was not noted.\n" in nothing
    assert "copied from notes" in text
    assert max(map(len, text.splitlines())) <= 120
    assert not unknown.warning()
    assert unknown.moment() == "some day"
    assert "copied from notes" not in page([StudyOutcome(STUDY, False, MACHINE, "")])


def test_the_page_in_the_docs_is_made_from_what_is_kept_beside_it():
    docs = Path(__file__).parents[3] / "docs"
    kept = load_kept(docs / "benchmarks.json")
    assert page(kept) == (docs / "benchmarks.md").read_text()
    assert {"thesis", "log_write_path", "takeover", "services"} <= {outcome.study.name for outcome in kept}
    assert all(outcome == outcome.for_page() for outcome in kept), "raw output stays out of the repository"


def test_what_was_measured_replaces_what_was_kept_unless_it_failed_or_was_shorter(tmp_path):
    full = StudyOutcome(STUDY, False, MACHINE, f"a table\n{Goal('fast: 3 x', True)}")
    kept = joined([], [full])
    assert kept[0].output == "goal met: fast: 3 x"
    assert joined(kept, [replace(full, failure="no disk", output="")]) == kept
    assert joined(kept, [replace(full, quick=True, output="")]) == kept
    other = replace(full, study=replace(STUDY, name="other"), quick=True)
    newer = replace(full, output=str(Goal("fast: 4 x", True)))
    assert [outcome.output for outcome in joined(kept, [other, newer])] == [
        "goal met: fast: 3 x",
        "goal met: fast: 4 x",
    ]
    (tmp_path / "kept.json").write_text(dump_kept(kept))
    assert load_kept(tmp_path / "kept.json") == kept
    assert load_kept(tmp_path / "none.json") == []


def test_a_goal_and_a_number_beside_a_papers_are_taken_apart():
    said = "goal met: 4.1 log over file: 4.40 (4-5) x, thesis 3 x; why: so\ngoal not met: at most: 1: 2 ms\n"
    found = [(verdict.what, verdict.found) for verdict in verdicts_in(said + beside("n", "3 (2-4): x"))]
    assert found == [
        ("4.1 log over file", "4.40 (4-5) x, thesis 3 x; why: so"),
        ("at most: 1", "2 ms"),
        ("n", "3 (2-4): x"),
    ]


def test_a_study_that_fails_is_an_outcome():
    assert run(Study("nosuch", ""), quick=True).failure.endswith("No module named safekeeper.bench.studies.nosuch")


def test_numbers_of_a_busy_machine_carry_a_warning():
    def page_with(others):
        return page([StudyOutcome(STUDY, False, replace(MACHINE, cores=2), "", others=others)])

    assert "busy" not in page_with(others=0.4)
    assert "**The machine was busy with other work: it took 0.6 of 2 processors." in page_with(others=0.6)


def test_what_a_study_uses_itself_is_not_taken_for_the_work_of_others(monkeypatch):
    ticks = os.sysconf("SC_CLK_TCK")
    line = f"cpu  {ticks} 0 {2 * ticks} {90 * ticks} {70 * ticks} 0 {ticks} {3 * ticks} 0 0\ncpu0 1 2 3\n"
    monkeypatch.setattr(Path, "read_text", lambda self: line)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_utime=1.5, ru_stime=0.5))
    assert harness.run_all._used_by_others() == 1 + 2 + 1 + 3 - 1.5 - 0.5


def test_a_machine_names_the_versions_of_what_is_installed_and_of_nothing_else(monkeypatch):
    assert {"safekeeper", "Python", "SQLite", "rocksdict", "Java", "Redis server"} <= MACHINE.versions.keys()
    assert all(re.match(r"\d+[.\d]*", version) for version in MACHINE.versions.values())
    monkeypatch.setenv("PATH", "")
    assert _program_versions.__wrapped__() == {}


def test_a_machine_says_when_many_processes_want_it():
    idle = replace(MACHINE, load=0.5, cores=2)
    assert not idle.warning()
    assert "30 processes wanted its 2 cores" in replace(idle, load=30.0).warning()


@pytest.fixture
def made_up(monkeypatch):
    """Three studies that are not run; the names of those that would be."""
    ran = []

    def run(study, *, quick):
        ran.append(study.name)
        return StudyOutcome(study, quick, MACHINE, f"run {len(ran)}", INTERRUPTED if study.name == "c" else "")

    monkeypatch.setattr(harness.run_all, "studies", lambda: [replace(STUDY, name=name) for name in "abcd"])
    monkeypatch.setattr(harness.run_all, "run", run)
    return ran


def test_results_are_kept_and_joined_with_those_of_earlier_runs(made_up, tmp_path):
    run_all(quick=True, only=["b"], results=tmp_path / "new", said=str)
    outcomes = run_all(quick=False, only=["a"], results=tmp_path / "new", said=str)
    assert made_up == ["b", "a"]
    assert [(outcome.study.name, outcome.output, outcome.quick) for outcome in outcomes] == [
        ("a", "run 2", False),
        ("b", "run 1", True),
    ]
    assert outcomes == [StudyOutcome.of_json(outcome.to_json()) for outcome in outcomes]


def test_after_an_interruption_what_was_found_is_returned_and_nothing_more_is_run(made_up):
    assert [outcome.study.name for outcome in run_all(quick=True, said=str)] == ["a", "b", "c"]


def test_a_study_that_does_not_exist_is_named(made_up):
    with pytest.raises(SafekeeperError, match="no benchmark is called z: there are a, b, c, d"):
        run_all(quick=True, only=["z"], said=str)


# Starts a child that outlives its parent, tells its process and where temporary files go, then does as it is told.
STARTS_A_CHILD = """
import os, subprocess, sys, tempfile, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
file = tempfile.NamedTemporaryFile(delete=False)
with open(sys.argv[1] + ".new", "w") as told:
    told.write(f"{child.pid} {file.name}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("so far", flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_what_a_study_leaves_behind_ends_with_it(tmp_path):
    output, failure = run_apart([sys.executable, "-c", STARTS_A_CHILD, str(tmp_path / "told"), "0"])
    assert (output, failure) == ("so far", "")
    check_gone(tmp_path / "told")


# Leaves a process behind, in a session of its own, that has used two seconds of processor time.
LEAVES_A_BUSY_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
used = 0
while used < 2 * os.sysconf("SC_CLK_TCK"):
    time.sleep(0.05)
    used = sum(map(int, open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()[11:13]))
print(child.pid)
"""


def test_also_what_left_the_session_of_a_study_ends_with_it_and_counts_as_its_own():
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    pid, failure = run_apart([sys.executable, "-c", LEAVES_A_BUSY_CHILD])
    assert not failure
    assert not is_running(pid)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used > 1.5


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM), ids=("Ctrl-C", "SIGTERM"))
def test_whoever_is_told_to_end_takes_the_study_and_its_children_along(tmp_path, number):
    told = tmp_path / "told"
    code = "import signal, sys; from safekeeper.bench.harness.run_all import run_apart\n"
    code += "signal.signal(signal.SIGTERM, signal.default_int_handler)\nprint(run_apart(sys.argv[1:]))"
    command = [sys.executable, "-c", code, sys.executable, "-c", STARTS_A_CHILD, str(told), "600"]
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as process:
        eventually(told.exists)
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == f"{('so far', INTERRUPTED)}\n"
    check_gone(told)


def check_gone(told):
    pid, file = told.read_text().split()
    assert not os.path.exists(file)
    eventually(lambda: not is_running(pid))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds):
    give_up = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.01)
