"""Saves equal completions, whatever the store, the serializer and the caller do."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from safekeeper import (
    Backoff,
    BadState,
    Bounds,
    CheckpointId,
    Closed,
    Conflict,
    QueueFull,
    Receipt,
    SafeKeeper,
    SafekeeperError,
    Ticket,
    Unavailable,
)
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper.ticket import Tray
from safekeeper.testing import Faulty

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
IDS = [CheckpointId("group", b"%d" % n) for n in range(4)]


class Picky:
    """A serializer that does not like some states."""

    name = "picky"

    def dumps(self, state):
        if b"bad" in state:
            raise ValueError("it is bad")
        return bytes(state)

    def loads(self, data):
        return data


@dataclass
class Save:
    """One save as the model remembers it."""

    id: CheckpointId
    state: bytes | None
    ticket: Ticket | None = None
    completions: list[Ticket] = field(default_factory=list)
    quiet: bool = False
    """Whether nobody is called back, so that it may travel in a tray."""

    @property
    def certainly_not_stored(self) -> bool:
        assert self.ticket is not None
        return isinstance(self.ticket.outcome(), QueueFull | BadState)

    @property
    def acknowledged(self) -> bool:
        assert self.ticket is not None
        return isinstance(self.ticket.outcome(), Receipt)


class KeeperMachine(RuleBasedStateMachine):
    """One caller saves and forgets in order; the store is well, slow, stuck, failing in either way, or all in turn."""

    @initialize(
        overflow=st.sampled_from(["block", "reject", "drop-oldest", "coalesce"]),
        serializer=st.sampled_from([Picky(), None]),
        count=st.integers(1, 5),
        workers=st.integers(1, 3),
    )
    def open(self, overflow, serializer, count, workers):
        self.store = Faulty(MemoryBackend())
        self.lock = threading.Lock()
        self.keeper = SafeKeeper(
            self.store,
            serializer=serializer,
            overflow=overflow,
            serialization_queue=Bounds(count, 20_000),
            storage_queue=Bounds(count, 20_000),
            serialization_workers=workers,
            storage_workers=workers,
            deadline=0.1,
            lock_timeout=0.05,
            keep_alive=0.02,
            backoff=Backoff(first=0.001, most=0.01),
        )
        self.saves: list[Save] = []
        self.waiting: list[threading.Thread] = []
        self.patience = patch("safekeeper.keeper.writing._PATIENT", 0.0)
        self.patience.start()
        self.stuck = ExitStack()
        self.is_stuck = self.is_closed = False

    @rule(
        id=st.sampled_from(IDS),
        size=st.sampled_from([0, 10, 5000, 30_000]),
        how=st.sampled_from(["plain", "quiet", "quiet", "bad", "lock", "frozen", "forget", "held lock"]),
        deadline=st.sampled_from([None, 0.0, 0.01, 5.0]),
    )
    def save(self, id, size, how, deadline):
        if deadline == 5.0 and self.is_stuck:
            deadline = 0.05  # the caller may have to wait so long for room
        number = b"%d " % len(self.saves) + (b"bad" if how == "bad" else b"")
        save = Save(id, None if how == "forget" else number + bytes(size))
        callback = save.completions.append
        try:
            if how == "quiet":
                save.quiet = True
                # bytes go alone: they may be left to a worker
                save.ticket = self.keeper.save(id, bytearray(save.state) if self.keeper._codec else save.state)
            elif how == "forget":
                save.ticket = self.keeper.forget(id, deadline=deadline, callback=callback)
            elif how == "held lock":
                with self.lock:
                    save.ticket = self.keeper.save(id, save.state, lock=self.lock, deadline=deadline, callback=callback)
            else:
                lock = self.lock if how == "lock" else None
                frozen = how == "frozen"
                save.ticket = self.keeper.save(
                    id, save.state, lock=lock, frozen=frozen, deadline=deadline, callback=callback
                )
        except Closed:
            assert self.is_closed
            assert not save.completions
            return
        self.saves.append(save)

    @rule(id=st.sampled_from(IDS))
    def save_and_wait(self, id):
        """In a thread, which may write it itself; who calls the keeper next does not wait for that."""
        save = Save(id, b"%d waits" % len(self.saves), quiet=True)
        state = bytearray(save.state) if self.keeper._codec else save.state
        returned = threading.Event()

        def save_and_wait():
            try:
                save.ticket = self.keeper.save(id, state)
            except Closed:
                assert self.is_closed
            finally:
                returned.set()
            if save.ticket is not None:
                save.ticket.outcome()

        thread = threading.Thread(target=save_and_wait)
        thread.start()
        self.waiting.append(thread)
        returned.wait()
        if save.ticket is not None:
            self.saves.append(save)

    @precondition(lambda self: not self.is_stuck)
    @rule(when=st.sampled_from(["before", "after"]))
    def get_stuck(self, when):
        self.stuck.enter_context(self.store.hold("write", when=when))
        self.is_stuck = True

    @precondition(lambda self: self.is_stuck)
    @rule()
    def get_unstuck(self):
        self.stuck.close()
        self.is_stuck = False

    @rule(
        when=st.sampled_from(["before", "after"]),
        times=st.integers(1, 5),
        error=st.sampled_from([Unavailable("injected"), Conflict("injected")]),
    )
    def fail(self, when, times, error):
        self.store.fail("write", when=when, times=times, error=error)

    @rule(timeout=st.sampled_from([0.0, 0.01, None]))
    def flush(self, timeout):
        try:
            self.keeper.flush(timeout)
        except TimeoutError:
            assert timeout is not None
            return
        assert all(save.ticket.done() for save in self.saves)

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, unique=True))
    def save_many(self, ids):
        """What `save_many` does before it waits."""
        saves = [Save(id, b"%d " % (len(self.saves) + n), quiet=True) for n, id in enumerate(ids)]
        try:
            sent = self.keeper._send_many([(save.id, save.state) for save in saves], 0.05)
        except Closed:
            assert self.is_closed
            return
        entries = sent * len(saves) if type(sent[0]) is Tray else sent
        for save, entry in zip(saves, entries, strict=True):
            save.ticket = Ticket(self.keeper._pipeline.completions, entry, save.id, entry.newest)
        self.saves += saves

    @rule(id=st.sampled_from(IDS))
    def fetch(self, id):
        try:
            found = self.keeper.fetch(id)
        except Closed:
            assert self.is_closed
            return
        assert found in [None, *(save.state for save in self.saves if save.id == id)]

    @precondition(lambda self: len(self.saves) > 5)
    @rule(seconds=st.sampled_from([0.0, 0.01, 5.0]))
    def close(self, seconds):
        self.is_closed = True
        with suppress(Unavailable):
            self.keeper.close(0.01 if self.is_stuck else seconds)

    @invariant()
    def every_save_is_counted_once(self):
        if not hasattr(self, "keeper"):
            return
        m = self.keeper.metrics()
        assert m.saves == len(self.saves)
        completed = m.stored + m.superseded + m.dropped + m.rejected + m.expired + m.failed + m.closed
        assert m.saves == completed + m.pending
        assert m.storage_queue_entries >= 0
        assert m.storage_queue_bytes >= 0

    def teardown(self):
        if not hasattr(self, "keeper"):
            return
        self.stuck.close()
        for thread in self.waiting:
            thread.join(60)
        try:
            self.keeper.close()
        except SafekeeperError:
            assert self.is_closed
        for thread in threading.enumerate():
            if thread.name.startswith("safekeeper-"):
                thread.join(60)
        self.patience.stop()
        assert not [thread for thread in self.waiting if thread.is_alive()]
        self.every_save_is_counted_once()
        assert self.keeper.metrics().pending == 0
        for save in self.saves:
            assert save.completions == ([] if save.quiet else [save.ticket])
            assert isinstance(save.ticket.outcome(0), Receipt | SafekeeperError)
        for id in IDS:
            assert self.stored(id) in self.possible(id)
        queues = (self.keeper._pipeline.serialization.queue, self.keeper._pipeline.storage.queue)
        assert [(len(q._waiting), len(q._ready), len(q.lanes), q.count, q.nbytes) for q in queues] == [(0,) * 5] * 2

    def stored(self, id: CheckpointId) -> bytes | None:
        (value,) = self.store.inner.read([id])
        codec = self.keeper._codec
        return value if value is None or codec is None else codec.decode(value)

    def possible(self, id: CheckpointId) -> list[bytes | None]:
        """The last acknowledged state, or one of those after it that may have been written without that being known."""
        states: list[bytes | None] = [None]
        for save in self.saves:
            if save.id != id or save.certainly_not_stored:
                continue
            if save.acknowledged:
                states = [save.state]
            else:
                states.append(save.state)
        return states


TestKeeper = pytest.mark.crash(KeeperMachine.TestCase)
TestKeeper.settings = settings(
    max_examples=400 if LONG else 25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
