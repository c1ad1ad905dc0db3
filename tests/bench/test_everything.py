from dataclasses import replace

from safekeeper.bench.everything import Outcome, Script, page, run, scripts
from safekeeper.bench.goals import Goal, goals_in
from safekeeper.bench.machine import Machine


def test_every_script_is_found_and_no_module_that_is_none():
    found = {script.name: script for script in scripts()}
    assert {"driver_speed", "thesis"} <= found.keys()
    assert found["thesis"].has_quick
    assert (
        found["thesis"].title == "The measurements of the S4 thesis again, with its settings, ours beside its figures."
    )
    assert not {"recover", "cli", "driver", "everything"} & found.keys()


def test_goals_are_read_from_what_a_script_prints():
    text = f"a table\n{Goal('fast: 3 x', True)}\nmore\n{Goal('small: no', False)}\ngoals met: all of them\n"
    assert list(goals_in(text)) == [Goal("fast: 3 x", True), Goal("small: no", False)]


def test_the_page_says_what_is_met_what_is_not_and_what_did_not_run():
    script = Script("some", "What some costs.", True)
    outcomes = [Outcome(script, f"12 ms\n{Goal('fast', False)}"), Outcome(script, "", "no module named redis")]
    text = page(outcomes, Machine.here(), quick=True)
    assert "| fast | **no** | some |" in text
    assert "```\n12 ms\n" in text
    assert "It did not run to its end: no module named redis" in text
    assert "`safekeeper bench all --quick`" in text


def test_a_script_that_fails_is_an_outcome():
    assert run(Script("nosuch", "", False), quick=True).failure.endswith("No module named safekeeper.bench.nosuch")


def test_numbers_of_a_busy_machine_carry_a_warning():
    idle = replace(Machine.here(), load=0.5, cores=2)
    assert not idle.warning()
    assert "**The machine was busy" not in page([], idle, quick=False)
    assert "**The machine was busy" in page([], replace(idle, load=30.0), quick=False)
