"""An agent has several writes under way where the store gains by it."""

import threading

from safekeeper import CheckpointId
from safekeeper.agent import __main__ as agent
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper import keeper as keeper_module


class Held(MemoryBackend):
    """Writes are under way until they are let go."""

    def __init__(self, concurrent_writes):
        super().__init__()
        self.concurrent_writes = concurrent_writes
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()

    def write(self, batch):
        self.begun.release()
        self.let_go.wait(60)
        return super().write(batch)


def test_the_commits_of_four_partitions_are_under_way_at_once_and_no_fifth_is(monkeypatch):
    store = Held(concurrent_writes=4)
    monkeypatch.setattr(keeper_module.registry, "open", lambda url: store)
    with agent.open_keeper(agent.AgentSettings("held:")) as keeper:
        tickets = []
        for n in range(4):
            tickets.append(keeper.save(CheckpointId(f"partition {n}", b"commit"), b"1"))
            assert store.begun.acquire(timeout=60)
        tickets.append(keeper.save(CheckpointId("partition 4", b"commit"), b"1"))
        assert not any(ticket.done() for ticket in tickets)
        assert not store.begun.acquire(timeout=0.05)
        store.let_go.set()
        for ticket in tickets:
            ticket.result(60)
