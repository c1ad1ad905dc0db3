"""Which unit is captured next, and who backs it up."""

import time
from contextlib import ExitStack
from itertools import pairwise
from random import Random

import pytest

from safekeeper import SafeKeeper
from safekeeper.bench.studies.minmax_simulator import (
    LOADS,
    RULES,
    SERVERS,
    SHIPPED,
    UNEQUAL,
    SimulatedServer,
    Simulator,
    assigned,
    compare,
    example,
    family,
    mean,
)
from safekeeper.operators import Operator
from safekeeper.policy import Choice, IdleCapture
from safekeeper.policy.assign import assign
from safekeeper.policy.minmax import (
    CaptureUnit,
    PayingRule,
    RootRule,
    RoundRobin,
    ThesisRule,
    WaitingPaste,
    expected_recovery,
    segments,
)
from safekeeper.testing.peer import PATIENCE


@pytest.mark.parametrize(
    ("rule", "average", "peak", "schedule"),
    [
        (RoundRobin, 1.4748, 2.7431, "u1@0 u2@1 u3@3 u1@4 u2@5"),
        (ThesisRule, 1.0272, 2.0781, "u3@0 u3@1 u3@2 u3@3 u1@4 u3@5 u2@6 u3@8 u1@9 u3@10"),
    ],
)
def test_the_worked_example_of_the_thesis_comes_out(rule, average, peak, schedule):
    found = example(rule())
    assert (round(found[0], 4), round(found[1], 4)) == (average, peak)
    captures = " ".join(f"{unit}@{at:g}" for unit, at in found[2])
    assert captures.startswith(schedule + " ")


@pytest.mark.parametrize("load", LOADS)
def test_root_is_never_worse_than_round_robin(load):
    ratio = mean(5, LOADS[load], "root", 12.0, 1) / mean(5, LOADS[load], "round robin", 12.0, 1)
    assert ratio <= 1.02


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("load", LOADS)
def test_the_rule_that_is_shipped_is_never_worse_than_round_robin_and_much_better_on_unequal_units(load, servers):
    ratio = mean(servers, LOADS[load], SHIPPED, 12.0, 1) / mean(servers, LOADS[load], "round robin", 12.0, 1)
    assert ratio <= (0.7 if load in UNEQUAL else 1.005)
    assert type(IdleCapture()._rule) is RULES[SHIPPED]


def test_on_a_family_of_loads_the_printed_rule_loses_to_round_robin_and_the_shipped_one_does_not():
    loads = family()
    assert len(loads) == 60
    some = {name: load for number, (name, load) in enumerate(loads.items()) if number % 6 == 1}
    found = list(compare(some, 6.0, 1))
    assert max(one.ratios["thesis"] for one in found) > 1.1
    assert max(one.ratios[SHIPPED] for one in found) < 1.05
    assert sum(one.ratios[SHIPPED] for one in found) < 0.8 * len(found)


def test_a_capture_has_to_pay_for_itself_and_what_waits_is_pasted_first():
    rule, idle, busy = PayingRule(), unit("1", load=0.01, since=9.5), unit("2", load=0.64, since=9.9)
    assert rule.choose(10.0, [idle], []) is None  # 5 ms to process again, 10 to paste
    assert rule.choose(11.0, [idle], []) is idle  # 15
    assert rule.choose(10.0, [busy, idle], []) is None  # 64 ms to process again, 80 to paste: all are busy
    assert rule.choose(10.1, [busy, idle], []) is busy
    waiting = [paste("p", 1.0)]
    deeds = [rule.choose(10.1, [busy, idle], waiting) for _ in range(10)]
    assert deeds.count(waiting[0]) == 9 > 1 == deeds.count(busy)  # those whose capture pays are not forgotten


def test_moved_backups_shorten_the_recovery_of_a_simulated_cluster():
    shares, random, moved, moves = assigned(5, 12.0, 2)
    assert moves > 0
    assert shares <= moved < random


@pytest.mark.parametrize("again", ["when pasted", "any time"])
def test_whether_or_not_captures_wait_for_pastes_everything_is_pasted(again):
    units = [CaptureUnit(f"u{number}", "b", 0.1, 0.02, 0.01) for number in range(3)]
    simulator = Simulator([SimulatedServer("a", units, RootRule()), SimulatedServer("b", [], RootRule())], again=again)
    simulator.run(1.0, 20.0)
    assert simulator.pastes > 100
    assert sum(unit.waiting for unit in units) <= 0.04
    apart = [after - before for (_, before), (_, after) in pairwise(simulator.captures)]
    assert max(apart) < 0.1


def unit(name, backup="b", **fields):
    return CaptureUnit(name, backup, **{"load": 0.1, "capture": 0.1, "paste": 0.1, **fields})


def paste(owner, recovery, seconds=0.1):
    return WaitingPaste(owner, f"{owner}.1", seconds, recovery, 0.1)


def test_the_recovery_of_a_process_is_that_of_its_slowest_backup():
    units = [unit("1", "a"), unit("2", "b", waiting=0.5), unit("3", "b", since=5.0)]
    assert segments(units, 10.0) == {"a": pytest.approx(1.0), "b": pytest.approx(2.0)}
    assert expected_recovery(units, 10.0) == pytest.approx(2.0)
    assert expected_recovery([], 10.0) == 0


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_is_under_way_is_not_captured_again(rule):
    units = [unit("1", free=False), unit("2", since=9.0)]
    assert rule().choose(10.0, units, []) is units[1]
    assert rule().choose(10.0, units[:1], []) is None
    waiting = paste("p", 3.0)
    assert rule().choose(10.0, units[:1], [waiting]) is waiting


@pytest.mark.parametrize("rule", [RoundRobin, RootRule])
def test_captures_and_pastes_take_turns(rule):
    units, waiting = [unit("1"), unit("2")], [paste("p", 1.0), paste("q", 2.0)]
    rule = rule()
    deeds = [rule.choose(10.0, units, waiting) for _ in range(4)]
    assert [isinstance(deed, WaitingPaste) for deed in deeds] == [False, True, False, True]
    assert deeds[1] is waiting[1]


def test_the_printed_rule_pastes_if_that_leaves_more_than_the_capture():
    units = [unit("1")]
    assert ThesisRule().choose(10.0, units, [paste("p", 0.1)]) is units[0]
    assert isinstance(ThesisRule().choose(10.0, units, [paste("p", 0.5)]), WaitingPaste)


def random_cluster(seed):
    random = Random(seed)
    names = [f"s{number}" for number in range(random.randint(3, 9))]
    return {
        name: [
            unit(f"{name}.{number}", random.choice([other for other in names if other != name]), load=random.random())
            for number in range(random.randint(0, 8))
        ]
        for name in names
    }


def test_moves_never_make_the_longest_recovery_longer_and_come_to_an_end():
    gained = 0
    for seed in range(1_000):
        processes = random_cluster(seed)
        first = before = max(expected_recovery(units, 10.0) for units in processes.values())
        seen = set()
        while moves := assign(processes, 10.0):
            for move in moves:
                (moved,) = [unit for unit in processes[move.owner] if unit.name == move.unit]
                assert moved.backup == move.source
                assert move.to not in (move.owner, move.source)
                moved.backup = move.to
            after = max(expected_recovery(units, 10.0) for units in processes.values())
            assert after <= before + 1e-9, f"seed {seed}"
            state = tuple(unit.backup for units in processes.values() for unit in units)
            assert state not in seen, f"seed {seed}: a cycle"
            seen.add(state)
            before = after
        gained += before < first
    assert gained > 500


def test_two_processes_have_nobody_else():
    assert assign({"a": [unit("1", "b")], "b": []}, 10.0) == []


class View:
    """An operator, as a policy sees it."""

    def __init__(self, event_seconds=0.001, capture_seconds=0.01):
        self.unsaved, self.waited = 0, 0.0
        self.event_seconds, self.capture_seconds = event_seconds, capture_seconds


class Standby:
    """A standby, as a policy sees it."""

    def __init__(self, owner, waiting, waited=0.0, recovery=0.0, load=0.1):
        self.owner, self.waiting, self.waited, self.recovery, self.load = owner, waiting, waited, recovery, load


class TestIdle:
    def run(self, views, rates, seconds, rule=None, **settings):
        """Who captures in so many seconds, asked every 10 ms."""
        now = 0.0
        idle = IdleCapture(rule, clock=lambda: now, **settings)
        captures = []
        for step in range(round(100 * seconds)):
            now = step / 100
            for name, view in enumerate(views):
                view.waited = view.waited + 0.01 if view.unsaved else 0.0
                view.unsaved += rates[name] * (step % (100 // rates[name] or 1) == 0) if rates[name] else 0
                if idle.due(view) is not None:
                    captures.append((name, now))
                    view.unsaved, view.waited = 0, 0.0
        return idle, captures

    def test_captures_take_no_more_than_their_share(self):
        _, captures = self.run([View(), View()], [50, 50], 10.0, share=0.1)
        assert 90 <= len(captures) <= 101
        assert all(after - before > 0.049 for (_, before), (_, after) in pairwise(captures))  # one may have been late

    def test_who_has_more_to_process_again_is_captured_more_often(self):
        _, captures = self.run([View(event_seconds=0.01), View(event_seconds=0.0001)], [50, 50], 20.0, share=0.05)
        names = [name for name, _ in captures]
        assert names.count(0) > 2 * names.count(1) > 0

    def test_round_robin_gives_everybody_a_turn(self):
        _, captures = self.run([View(), View(), View()], [50, 20, 50], 20.0, RoundRobin(), share=0.1)
        names = [name for name, _ in captures]
        assert max(map(names.count, range(3))) - min(map(names.count, range(3))) <= 1

    def test_one_that_asks_no_more_holds_up_nobody(self):
        now = 0.0
        idle = IdleCapture(RootRule(), clock=lambda: now, share=1.0)
        gone, other = View(event_seconds=1.0), View()
        gone.unsaved = other.unsaved = 5
        other.waited = 0.01
        idle._next = 0.1
        assert idle.due(gone) is idle.due(other) is None
        now = 0.11
        assert idle.due(other) is None  # it is the other one's turn
        now = 1.0
        assert idle.due(other) is Choice.CHANGED

    def test_nobody_waits_for_ever(self):
        _, captures = self.run([View(capture_seconds=10.0), View(capture_seconds=10.0)], [50, 50], 20.0, at_least=2.0)
        assert [name for name, _ in captures].count(1) >= 5

    def test_captures_and_pastes_take_turns_and_their_share(self):
        now = 0.0
        idle = IdleCapture(RootRule(), clock=lambda: now, share=0.1)
        operator, standby = View(), Standby("other", waiting=0.02)
        done = []
        for step in range(1000):
            now = step / 100
            operator.unsaved, operator.waited = operator.unsaved + 1, 0.5
            if idle.due(operator) is not None:
                done.append(("capture", now))
                operator.unsaved = 0
            if idle.may_paste(standby):
                done.append(("paste", now))
        kinds = [kind for kind, _ in done]
        assert kinds[:6] == ["capture", "paste"] * 3
        assert 60 <= len(done) <= 70  # 0.01 s and 0.02 s, a tenth of ten seconds
        assert all(after - before > 0.049 for (_, before), (_, after) in pairwise(done))  # one may have been late

    def test_the_owner_whose_recovery_takes_longest_is_pasted_first_and_of_it_what_came_first(self):
        now = 1.0
        idle = IdleCapture(clock=lambda: now)
        late, early = Standby("slow", 0.01, waited=0.1, recovery=1.0), Standby("slow", 0.01, waited=0.2, recovery=1.0)
        quick, idling = Standby("quick", 0.01, waited=0.9, recovery=1.5), Standby("slow", 0.0, recovery=1.0)
        idle._next = 1.1
        assert not any(idle.may_paste(view) for view in (late, early, quick, idling))
        now = 1.1
        assert [view for view in (late, quick, idling, early) if idle.may_paste(view)] == [early]

    @pytest.mark.parametrize(("recovery", "deed"), [(0.001, "capture"), (1.0, "paste")])
    def test_the_printed_rule_compares_the_capture_with_the_paste(self, recovery, deed):
        now = 0.9
        idle = IdleCapture(ThesisRule(), clock=lambda: now)
        operator, standby = View(), Standby("other", 0.01, recovery=recovery)
        operator.unsaved, idle._next = 30, 1.0
        assert not idle.may_paste(standby)
        assert idle.due(operator) is None
        now = 1.0
        found = "paste" if idle.may_paste(standby) else "capture" if idle.due(operator) is not None else None
        assert found == deed

    def test_what_has_waited_too_long_is_pasted_and_one_that_asks_no_more_holds_up_nobody(self):
        now = 0.0
        idle = IdleCapture(clock=lambda: now, at_least=2.0)
        idle._next = 3.0
        assert not idle.may_paste(Standby("a", 0.01, waited=1.9))
        assert idle.may_paste(Standby("a", 0.01, waited=2.0))
        idle._next = 3.0
        gone, other = Standby("a", 0.01, recovery=9.0), Standby("b", 0.01)
        now = 2.9
        assert not idle.may_paste(gone)
        now = 3.05
        assert not idle.may_paste(other)  # it is the other one's turn
        now = 3.3
        assert idle.may_paste(other)

    def test_the_backup_that_takes_longest_counts(self):
        now = 0.0
        views = [View(), View(), View()]
        idle = IdleCapture(clock=lambda: now, backup=lambda view: "a" if view is views[0] else "b")
        idle._next = 9.0
        for number, view in enumerate(views):
            view.unsaved = 10 + number
            idle.due(view)
        now = 1.0
        assert idle.expected_recovery == pytest.approx(0.023)

    @pytest.mark.parametrize("settings", [{"share": 0}, {"share": 1.5}, {"at_least": 0}])
    def test_settings_that_make_no_sense_are_refused(self, settings):
        with pytest.raises(ValueError, match="takes"):
            IdleCapture(**settings)

    def test_operators_of_a_process_share_it_and_recover(self, tmp_path):
        idle = IdleCapture(share=1.0)
        names = [f"u{number}" for number in range(4)]

        def opened(stack):
            keeper = stack.enter_context(SafeKeeper(f"log://{tmp_path}", serializer=None))
            return [stack.enter_context(Operator(name, keeper, capture=idle)) for name in names]

        with ExitStack() as stack:
            operators = opened(stack)
            for number in range(1, 301):
                for operator in operators:
                    with operator.event("in", number) as event:
                        event.part(b"k", int).state += number
            give_up = time.monotonic() + PATIENCE
            while any(operator._core.unsaved for operator in operators):
                assert time.monotonic() < give_up
                time.sleep(0.01)
            assert all(operator._core.event_seconds > 0 for operator in operators)
            assert idle.expected_recovery == 0.0
        with ExitStack() as stack:
            assert [operator.look(b"k") for operator in opened(stack)] == [301 * 150] * 4
