"""What one writer asks for at about the same moment is one request, counted at the coordinator."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from safekeeper.backends.hdfs.peace import gathering
from safekeeper.backends.hdfs.peace.client import PeacePlacement, _Connection
from safekeeper.backends.hdfs.peace.coordinator import Coordinator
from safekeeper.backends.hdfs.peace.network import Network, NetworkNode

from .test_coordinator import eventually

SECRET = "a secret for the tests"


def counted(coordinator):
    """The requests that come, each with its chunks."""
    requests, ask = [], coordinator._schedule.ask

    def note(request):
        requests.append((request.chunks, request.checkpoint))
        return ask(request)

    coordinator._schedule.ask = note
    return requests


@pytest.fixture
def coordinator():
    nodes = [NetworkNode(f"10.0.1.{n}:9866", "/1", 2, 2) for n in range(1, 5)]
    with Coordinator(Network(nodes), SECRET) as coordinator:
        yield coordinator


@pytest.fixture
def requests(coordinator):
    return counted(coordinator)


@pytest.fixture
def writer(coordinator, requests):
    with closing(PeacePlacement(("127.0.0.1", coordinator.port), SECRET, host="10.0.1.1")) as writer:
        writer.segment(2)  # it is connected
        yield writer


@pytest.fixture
def patient(monkeypatch):
    """Others have half a second to come: this machine may be busy."""
    monkeypatch.setattr(gathering, "GATHER_SECONDS", 0.5)


def idle(coordinator):
    eventually(lambda: (coordinator.status().waiting, coordinator.status().running) == (0, 0))


def write(writer, count, checkpoint, together=None, replicas=2):
    """Write some chunks; where they were to go."""
    if together is not None:
        together.wait(60)
    with writer.chunks(count, replicas, checkpoint) as turns:
        nodes = []
        for _ in range(count):
            with turns.take() as turn:
                nodes.append(turn.favoured)
                turn.written_to(turn.favoured)
        return nodes


def test_four_commits_at_the_same_moment_are_one_request(writer, coordinator, requests, patient):
    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        commits = [pool.submit(write, writer, n, f"partition {n}", together) for n in range(1, 5)]
        assert all(nodes for commit in commits for nodes in commit.result(60))
    assert [count for count, _ in requests] == [10]
    assert requests[0][1].startswith("partition ")
    assert writer.counts().planned == 10
    idle(coordinator)


def test_what_comes_later_or_has_other_replicas_is_another_request(writer, coordinator, requests, patient):
    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        commits = [pool.submit(write, writer, 2, "g", together, replicas) for replicas in (1, 2)]
        assert all(len(nodes) == n + 1 for n, commit in enumerate(commits) for nodes in commit.result(60))
    write(writer, 3, "later")
    assert sorted(requests[:2]) == [(2, "g"), (2, "g")]
    assert requests[2:] == [(3, "later")]
    idle(coordinator)


def test_more_than_a_request_may_have_are_two(writer, coordinator, requests, patient, monkeypatch):
    monkeypatch.setattr(gathering, "MOST_CHUNKS", 4)
    together = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        commits = [pool.submit(write, writer, 2, "g", together) for _ in range(3)]
        assert all(nodes for commit in commits for nodes in commit.result(60))
    assert sorted(count for count, _ in requests) == [2, 4]
    idle(coordinator)


def test_one_that_fails_takes_nothing_from_the_others_and_leaves_nothing_behind(writer, coordinator, requests, patient):
    together, others = threading.Barrier(2), threading.Event()

    def fail():
        together.wait(60)
        with pytest.raises(OSError, match="the disk"), writer.chunks(3, 2, "fails"):
            raise OSError("the disk")
        others.set()

    def succeed():
        together.wait(60)
        with writer.chunks(3, 2, "goes on") as turns:
            assert others.wait(60)
            for _ in range(3):
                with turns.take() as turn:
                    assert turn.favoured
                    turn.written_to(turn.favoured)

    with ThreadPoolExecutor(2) as pool:
        for one in (pool.submit(fail), pool.submit(succeed)):
            one.result(60)
    assert [count for count, _ in requests] == [6]
    idle(coordinator)
    assert write(writer, 2, "and again")[0]


def test_two_requests_that_end_at_the_same_moment_end_well(writer, coordinator, requests, monkeypatch):
    end, together = _Connection.end, threading.Barrier(2)

    def end_together(self, number):
        together.wait(60)
        end(self, number)

    def write_one(checkpoint):
        with writer.chunks(1, 2, checkpoint) as turns, turns.take() as turn:
            asked.wait(60)
            return turn.favoured

    asked = threading.Barrier(2)
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(gathering, "MOST_CHUNKS", 1)  # each asks by itself
        patch.setattr(_Connection, "end", end_together)
        commits = [pool.submit(write_one, name) for name in ("a", "b")]
        assert all(commit.result(60) for commit in commits)
    assert sorted(requests) == [(1, "a"), (1, "b")]
    idle(coordinator)
    assert write(writer, 2, "and again")[0]


def test_whoever_waits_for_a_turn_of_one_that_was_interrupted_waits_no_more(writer, coordinator, requests, patient):
    """Its threads end at once; those of another one that asked with it have their turns."""
    together, taken = threading.Barrier(2), threading.Event()
    with ThreadPoolExecutor(3) as pool:

        def interrupted():
            together.wait(60)
            with writer.chunks(9, 2, "interrupted") as turns:
                held = [turns.take() for _ in range(2)]  # as many as fit
                taken.set()
                waiting = pool.submit(turns.take)
                time.sleep(0.05)
            assert waiting.result(60).favoured == ()
            return held

        def goes_on():
            together.wait(60)
            with writer.chunks(1, 2, "goes on") as turns:
                assert taken.wait(60)
                return turns.take().favoured

        first, second = pool.submit(interrupted), pool.submit(goes_on)
        for turn in first.result(60):
            turn.done()
        assert second.result(60)
    assert [count for count, _ in requests] == [10]


def test_without_a_coordinator_nobody_waits_for_others(coordinator, requests, patient):
    coordinator.close()
    with closing(PeacePlacement(("127.0.0.1", coordinator.port), SECRET, host="10.0.1.1")) as writer:
        together = threading.Barrier(3)
        with ThreadPoolExecutor(3) as pool:
            commits = [pool.submit(write, writer, 2, "g", together) for _ in range(3)]
            assert [commit.result(60) for commit in commits] == [[(), ()]] * 3
    assert requests == []


def test_a_coordinator_that_ends_while_others_are_waited_for_lets_all_go_on(writer, coordinator, patient):
    together = threading.Barrier(4)

    def end():
        together.wait(60)
        coordinator.close()

    with ThreadPoolExecutor(4) as pool:
        commits = [pool.submit(write, writer, 40, "g", together) for _ in range(3)]
        pool.submit(end).result(60)
        assert all(len(commit.result(60)) == 40 for commit in commits)


# --- turns that were asked for ahead ----------------------------------------------------------------------------------


@pytest.fixture
def narrow():
    """A network that takes one chunk at a time."""
    with Coordinator(Network([NetworkNode(f"10.0.1.{n}:9866", "/1", 1, 1) for n in (1, 2)]), SECRET) as coordinator:
        yield coordinator


def test_reserved_turns_stay_with_their_group(narrow):
    requests = counted(narrow)
    with (
        closing(PeacePlacement(("127.0.0.1", narrow.port), SECRET, host="10.0.1.1")) as writer,
        ThreadPoolExecutor(1) as pool,
        writer.ahead(1, 1, "g"),
    ):
        other = pool.submit(write, writer, 1, "other", None, 1)
        eventually(lambda: len(requests) == 2)
        with writer.chunks(1, 1, "g") as turns, turns.take() as turn:
            assert turn.favoured
            assert not other.done()
        assert other.result(60)[0]
        assert requests == [(1, "g"), (1, "other")]
    idle(narrow)


def test_reserved_turns_that_are_not_used_for_long_are_lent(narrow, monkeypatch):
    monkeypatch.setattr("safekeeper.backends.hdfs.peace.client.KEPT_SECONDS", 0.2)
    with (
        closing(PeacePlacement(("127.0.0.1", narrow.port), SECRET, host="10.0.1.1")) as writer,
        writer.ahead(1, 1, "g"),
    ):
        assert write(writer, 1, "other", None, 1)[0]  # also in the same thread
        assert write(writer, 1, "g", None, 1)[0]
    idle(narrow)


def test_what_is_announced_is_one_request_however_it_is_written(writer, coordinator, requests):
    with writer.ahead(5, 2, "g.parts", wait=False):
        for count in (4, 1):
            assert all(write(writer, count, "g.parts"))
    assert requests == [(5, "g.parts")]
    idle(coordinator)


@pytest.mark.parametrize(("waited", "more"), ((5, []), (9, []), (3, [(2, "g.parts")])))
def test_what_was_waited_for_counts_as_announced(writer, coordinator, requests, waited, more):
    with writer.ahead(waited, 2, "g.parts"), writer.ahead(5, 2, "g.parts", wait=False):
        for count in (4, 1):
            assert all(write(writer, count, "g.parts"))
    assert requests == [(waited, "g.parts"), *more]
    idle(coordinator)
