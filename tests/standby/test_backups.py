"""Several processes that hold several operators each agree who stands by for which."""

import threading
import time
from contextlib import ExitStack

import pytest

from safekeeper import Batch, CheckpointId
from safekeeper.backends.memory import MemoryBackend
from safekeeper.operators import Operator
from safekeeper.policy import IdleCapture
from safekeeper.standby import Backups
from safekeeper.testing.peer import PATIENCE


def until(check):
    give_up = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < give_up
        time.sleep(0.005)


class HoldingProcess:
    """A process that holds operators, and stands by for those of others."""

    def __init__(self, store, name, held):
        self.store = store
        self.idle = IdleCapture(at_least=PATIENCE, share=1e-6, backup=lambda view: self.backups.of(view.name))
        self.backups = Backups(store, "all", self.idle, make=self.make, work=self.work, process=name)
        self.taken_over = []
        self.stack = ExitStack()
        self.held = {name: self.stack.enter_context(self.make(name)) for name in held}
        self.numbers = dict.fromkeys(held, 0)

    def make(self, name):
        return Operator(name, self.store, standby="warm", lease=PATIENCE, capture=self.idle)

    def work(self, operator):
        self.taken_over.append(operator.name)
        while not operator._stopped:
            time.sleep(0.01)

    def take(self, name, count):
        for _ in range(count):
            self.numbers[name] += 1
            with self.held[name].event("in", self.numbers[name]) as event:
                event.part(b"k", int).state += 1
        self.held[name]._core.event_seconds = 0.001  # not what this machine takes: the moves go by it

    def end(self):
        self.stack.close()


@pytest.fixture
def processes():
    with MemoryBackend() as store:
        processes = {
            name: HoldingProcess(store, name, [f"{name}{number}" for number in range(4)]) for name in ("a", "b", "c")
        }
        yield processes
        for process in processes.values():
            process.backups.close()
            process.end()


def step(processes):
    for process in processes.values():
        process.backups.step()


def settle(processes):
    """Take steps until every operator has the one standby that all agree on."""

    def is_settled():
        step(processes)
        return all(
            standby_of(processes, operator) == [other.backups.of(operator)]
            for process in processes.values()
            for operator in process.held
            for other in processes.values()
        )

    until(is_settled)


def standby_of(processes, operator):
    return [name for name, process in processes.items() if operator in process.backups.standbys]


def test_every_operator_has_a_standby_in_another_process(processes):
    for process in processes.values():
        for name in process.held:
            process.take(name, 1)
    settle(processes)
    for name, process in processes.items():
        for operator in process.held:
            (other,) = standby_of(processes, operator)
            assert other not in (name, "")
            assert process.backups.of(operator) == other
            until(lambda process=process, operator=operator: process.held[operator].metrics().standbys == 1)


def test_operators_without_an_event_have_a_standby(processes):
    settle(processes)
    for name, process in processes.items():
        assert sorted(unit.name for _, unit in process.idle.units()) == sorted(process.held)
        for operator in process.held:
            assert standby_of(processes, operator) not in ([], [name])


def test_an_operator_that_was_closed_or_has_failed_is_not_held_any_more(processes):
    idle, held = processes["a"].idle, processes["a"].held
    with pytest.raises(RuntimeError, match="no such word"), held["a0"].event("in", 1):
        raise RuntimeError("no such word")
    held["a1"].__exit__(None, None, None)
    assert {unit.name for _, unit in idle.units()} == {"a2", "a3"}
    held["a0"].__exit__(RuntimeError, RuntimeError(), None)


def test_what_was_taken_over_has_one_standby_that_stays(processes):
    settle(processes)
    closed = processes["a"].held["a0"]
    (owner,) = standby_of(processes, "a0")
    closed.__exit__(None, None, None)
    until(lambda: "a0" in processes[owner].taken_over)

    def stands_by():
        step(processes)
        return [name for name in standby_of(processes, "a0") if name != owner]

    until(stands_by)
    (standby,) = stands_by()
    for _ in range(6):
        assert stands_by() == [standby]
        assert {process.backups.of("a0") for process in processes.values()} == {standby}
    assert "a0" in processes[owner].backups.standbys


def test_a_standby_that_nobody_wants_here_ends_only_while_it_waits(processes):
    settle(processes)
    process = processes["a"]
    (name,) = standby_of(processes, "a0")
    standby = processes[name].backups.standbys["a0"]
    until(lambda: standby.lag is not None)
    process.held["a0"].__exit__(None, None, None)
    until(lambda: "a0" in processes[name].taken_over)
    standby.stop_waiting()
    with standby.event("in", 1) as event:
        event.part(b"k", int).state = 1
    assert not standby._stopped
    (name,) = standby_of(processes, "a1")
    standby = processes[name].backups.standbys["a1"]
    until(lambda: standby.lag is not None)
    standby.stop_waiting()
    until(lambda: "a1" not in processes[name].backups.standbys)
    process.held["a1"].flush()


def test_what_a_process_that_has_crashed_said_is_deleted(processes):
    store = processes["a"].store
    crashed = CheckpointId("all.backups", b"holds_crashed")
    store.write(Batch({crashed: b'{"number": 1, "seconds": {}}'}))
    for _ in range(20):
        step(processes)
    assert store.read([crashed]) == [None]
    assert sorted(store.keys("all.backups"))[-3:] == [b"holds_a", b"holds_b", b"holds_c"]


def test_operators_of_the_process_with_the_longest_recovery_are_moved_to_who_would_be_done_first(processes):
    for process in processes.values():
        for name in process.held:
            process.take(name, 1)
    settle(processes)
    a = processes["a"]
    where = [operator for operator in a.held if a.backups.of(operator) == "b"]
    slow = (where if len(where) > 1 else [operator for operator in a.held if operator not in where])[:2]
    before = a.backups.of(slow[0])
    assert a.backups.of(slow[1]) == before
    for operator in slow:
        a.take(operator, 200)
    until(lambda: step(processes) or sorted(a.backups.of(operator) for operator in slow) == ["b", "c"])
    settle(processes)
    (moved,) = [operator for operator in slow if a.backups.of(operator) != before]
    to = a.backups.of(moved)
    until(lambda: processes[to].backups.standbys[moved].metrics().stands_by == 1)
    assert {unit.name: unit.backup for _, unit in a.idle.units()}[moved] == to


def test_the_operators_of_a_process_that_ends_go_on_where_they_were_backed_up(processes):
    for process in processes.values():
        for name in process.held:
            process.take(name, 1)
    settle(processes)
    backups = {operator: processes["a"].backups.of(operator) for operator in processes["a"].held}
    ended = processes.pop("a")
    ended.backups.close()
    threading.Thread(target=ended.end, daemon=True).start()
    for operator, name in backups.items():
        until(lambda operator=operator, name=name: operator in processes[name].taken_over)
        assert processes[name].backups.standbys[operator].look(b"k") == 1
