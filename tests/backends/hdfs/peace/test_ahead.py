"""Turns that are asked for before there is something to write: a snapshot is taken when its turn has come."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from safekeeper import CheckpointId, SafeKeeper
from safekeeper.backends.hdfs.peace.client import PeacePlacement
from safekeeper.backends.hdfs.peace.coordinator import Coordinator
from safekeeper.backends.hdfs.peace.network import Network, NetworkNode
from safekeeper.backends.memory import MemoryBackend

from .test_coordinator import eventually

SECRET = "a secret for the tests"


@pytest.fixture
def coordinator():
    nodes = [NetworkNode(f"10.0.1.{n}:9866", "/1", 1, 1) for n in range(1, 4)]
    with Coordinator(Network(nodes), SECRET) as coordinator:
        yield coordinator


@pytest.fixture
def writer(coordinator):
    with closing(PeacePlacement(("127.0.0.1", coordinator.port), SECRET, host="10.0.1.1")) as writer:
        yield writer


@pytest.fixture
def other(coordinator):
    with closing(PeacePlacement(("127.0.0.1", coordinator.port), SECRET, host="10.0.1.1")) as other:
        yield other


def test_a_block_begins_with_its_turn_and_what_is_written_in_it_asks_for_nothing(writer, other, coordinator):
    began = threading.Event()

    def write():
        with writer.ahead(2, 1, "g"):
            began.set()
            with writer.chunks(2, 1, "g") as turns:
                for _ in range(2):
                    with turns.take() as turn:
                        assert turn.favoured
                        turn.written_to(turn.favoured)

    with ThreadPoolExecutor(1) as pool:
        with other.chunks(1, 1, "other") as turns, turns.take() as turn:
            assert turn.favoured
            writing = pool.submit(write)
            eventually(lambda: coordinator.status().waiting == 2)
            assert not began.is_set()
        writing.result(60)
    assert writer.counts().hits == 2
    eventually(lambda: (coordinator.status().waiting, coordinator.status().running) == (0, 0))


@pytest.mark.parametrize("asked", [1, 2, 5])
def test_more_or_fewer_chunks_than_were_asked_for_ahead_are_all_planned(writer, coordinator, asked):
    with writer.ahead(asked, 1, "g"), writer.chunks(2, 1, "g") as turns:
        for _ in range(2):
            with turns.take() as turn:
                assert turn.favoured
                turn.written_to(turn.favoured)
    assert writer.counts().hits == 2
    eventually(lambda: (coordinator.status().waiting, coordinator.status().running) == (0, 0))
    with writer.chunks(1, 1, "g") as turns, turns.take() as turn:  # and the connection is as good as before
        assert turn.favoured


def test_with_other_replicas_nothing_is_borrowed(writer):
    with writer.ahead(1, 2, "g"), writer.chunks(1, 1, "g") as turns:
        assert writer._reserved[0].left == 1
        assert not hasattr(turns, "_ahead")


def test_without_a_coordinator_nobody_waits():
    with (
        closing(PeacePlacement(("127.0.0.1", 1), SECRET, host="10.0.1.1")) as alone,
        alone.ahead(3, 1, "g"),
        alone.chunks(3, 1, "g") as turns,
    ):
        assert turns.take().favoured == ()


def test_a_coordinator_that_ends_lets_everybody_go_on(writer, other, coordinator):
    with ThreadPoolExecutor(1) as pool, other.chunks(1, 1, "other") as turns, turns.take():
        waiting = pool.submit(lambda: writer.ahead(1, 1, "g").__enter__())
        eventually(lambda: coordinator.status().waiting == 1)
        coordinator.close()
        waiting.result(60)


class InTurns(MemoryBackend):
    """Gives a turn when it is told to."""

    def __init__(self):
        super().__init__()
        self.asked = threading.Event()
        self.let_go = threading.Event()
        self.in_turn = False

    def turn(self, group, nbytes):
        self.asked.set()
        self.let_go.wait(60)
        return self

    def __enter__(self):
        self.in_turn = True

    def __exit__(self, *_):
        self.in_turn = False

    def write(self, batch):
        assert self.in_turn
        return super().write(batch)


def test_a_state_is_taken_when_its_turn_has_come():
    store, id, state = InTurns(), CheckpointId("g", b"k"), {"count": 1}
    with SafeKeeper(store) as keeper, ThreadPoolExecutor(1) as pool:
        saving = pool.submit(keeper.save_at_turn, id, lambda: dict(state), nbytes=100)
        assert store.asked.wait(60)
        state["count"] = 2  # after the save was asked for, before its turn
        store.let_go.set()
        saving.result(60)
        assert keeper.fetch(id) == {"count": 2}


def test_a_store_without_turns_takes_the_state_at_once_and_a_snapshot_that_fails_is_told():
    id = CheckpointId("g", b"k")
    with SafeKeeper("memory:") as keeper:
        keeper.save_at_turn(id, lambda: 1, nbytes=100)
        assert keeper.fetch(id) == 1
        with pytest.raises(ZeroDivisionError):
            keeper.save_at_turn(id, lambda: 1 / 0, nbytes=100)
        assert keeper.fetch(id) == 1
