"""Ctrl-C anywhere in `save` leaves nothing behind: the gauges are right, tickets end, and the keeper goes on."""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from safekeeper import Bounds, CheckpointId, SafeKeeper, Ticket
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty

A, B, C, D = (CheckpointId("group", key) for key in (b"a", b"b", b"c", b"d"))


# What the garbage collector calls is interrupted, too, and nobody can be told.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupt:
    """Raises KeyboardInterrupt in this thread at the n-th place where Python could do so: where a function begins or a
    call of C has returned. (Python stops to call it when it has raised.)"""

    def __init__(self, at: int) -> None:
        self._left = at
        self.where: str | None = None

    def __call__(self, frame, event, arg) -> None:
        if event not in ("call", "c_return") or arg is sys.setprofile:
            return
        self._left -= 1
        if self._left == 0:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}, {event} {arg}"
            raise KeyboardInterrupt


class Scene:
    """A keeper before the save that is interrupted, with what happened to it so far."""

    def __init__(self, keeper: SafeKeeper, store: Faulty) -> None:
        self.keeper = keeper
        self.store = store
        self.tickets: list[Ticket] = []
        self.heard: list[Ticket] = []
        self.tickets_of_trays: list[Ticket] = []
        self.together: list[CheckpointId] = []
        self.quiet = False  # whether there are saves without a callback

    def save(self, id: CheckpointId, state: object, **options) -> None:
        self.tickets.append(self.keeper.save(id, state, callback=self.heard.append, **options))

    def fill(self, gate) -> None:
        """One is being written, and the queue of two is full."""
        self.save(A, 0)
        gate.wait_for(1)
        self.save(B, 1)
        self.save(C, 2)

    def let_go_when_somebody_waits(self, gate) -> threading.Thread:
        def let_go() -> None:
            until = time.monotonic() + 60
            while not (self.keeper._pipeline.storage.queue.blocked or self.over) and time.monotonic() < until:
                time.sleep(0.0005)
            gate.release()

        self.over = False
        thread = threading.Thread(target=let_go)
        thread.start()
        return thread

    def save_together(self, *ids: CheckpointId) -> None:
        self.together, self.quiet = [*ids], True
        states = dict.fromkeys(ids, 3)
        self.tickets.append(self.keeper.save_together(states, callback=self.heard.append))

    def save_many(self, *ids: CheckpointId) -> None:
        """What `save_many` does before it waits."""
        self.quiet = True
        self.keeper._send_many([(id, [3]) for id in ids], 60.0)

    def save_quietly(self, id: CheckpointId) -> None:
        """A save that travels in a tray."""
        self.quiet = True
        self.tickets_of_trays.append(self.keeper.save(id, [3]))

    def begin_tray(self, gate) -> None:
        """One is being written, and a tray waits."""
        self.save(A, 0)
        gate.wait_for(1)
        self.save_quietly(B)


LOCK = threading.Lock()

SAVES: dict[str, tuple[dict, Callable[[Scene], None]]] = {
    "small": ({}, lambda s: s.save(A, 1)),
    "large": ({}, lambda s: s.save(A, "x" * 10_000)),
    "frozen": ({}, lambda s: s.save(A, {"count": 1}, frozen=True)),
    "locked": ({}, lambda s: s.save(A, {"count": 1}, lock=LOCK)),
    "refused": ({}, lambda s: s.save(A, 1j)),
    "expired": ({}, lambda s: s.save(A, 1, deadline=0)),
    "coalesced": ({"overflow": "coalesce", "full": True}, lambda s: s.save(B, 3)),
    "coalesced and waiting": ({"overflow": "coalesce", "full": True}, lambda s: s.save(D, 3)),
    "waiting": ({"overflow": "block", "full": True}, lambda s: s.save(D, 3)),
    "rejected": ({"overflow": "reject", "full": True}, lambda s: s.save(D, 3)),
    "dropping": ({"overflow": "drop-oldest", "full": True}, lambda s: s.save(D, 3)),
    "together": ({}, lambda s: s.save_together(A, B, C)),
    "together and waiting": ({"overflow": "block", "full": True}, lambda s: s.save_together(D, A, B)),
    "together and dropping": ({"overflow": "drop-oldest", "full": True}, lambda s: s.save_together(D, A)),
    "many": ({}, lambda s: s.save_many(A, B, A)),
    "many and waiting": ({"overflow": "block", "full": True}, lambda s: s.save_many(D, A, B)),
    "in a tray": ({}, lambda s: s.save_quietly(A)),
    "in another's tray": ({"overflow": "block", "tray": True}, lambda s: s.save_quietly(C)),
    "coalesced in a tray": ({"overflow": "coalesce", "tray": True}, lambda s: s.save_quietly(B)),
    "coalesced out of a tray": ({"overflow": "coalesce", "tray": True}, lambda s: s.save(B, 3)),
    "behind a tray": ({"overflow": "block", "tray": True}, lambda s: s.save(B, 3)),
    "dropping out of a tray": ({"overflow": "drop-oldest", "tray": True}, lambda s: s.save_many(C, D)),
    "together behind a tray": ({"overflow": "block", "tray": True}, lambda s: s.save_together(B, C)),
    "behind another": ({"overflow": "drop-oldest", "full": True}, lambda s: s.save(A, 3)),
}


@pytest.mark.parametrize("name", SAVES)
def test_an_interrupt_at_any_place_in_save_leaves_the_keeper_whole(name, monkeypatch):
    monkeypatch.setattr("safekeeper.keeper.ticket.TRAY_SECONDS", 60)
    options, save = SAVES[name]
    for at in itertools.count(1):
        interrupt = Interrupt(at)
        play(options, save, interrupt)
        if interrupt.where is None:
            assert at > 20, "it has come to no place where it could interrupt"
            break


def play(options: dict, save: Callable[[Scene], None], interrupt: Interrupt) -> None:
    settings = {key: value for key, value in options.items() if key not in ("full", "tray")}
    store = Faulty(MemoryBackend())
    store.atomic_batch = True  # as what is inside has
    keeper = SafeKeeper(store, storage_queue=Bounds(count=2), deadline=60, **settings)
    scene = Scene(keeper, store)
    with store.hold("write") as gate:
        if "full" in options:
            scene.fill(gate)
            helper = scene.let_go_when_somebody_waits(gate)
        if "tray" in options:
            scene.begin_tray(gate)
            helper = scene.let_go_when_somebody_waits(gate)
        try:
            sys.setprofile(interrupt)
            save(scene)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        if "full" in options or "tray" in options:
            scene.over = True
            helper.join()
    check(keeper, scene, interrupt.where)


def check(keeper: SafeKeeper, scene: Scene, where: str | None) -> None:
    assert keeper._pipeline.lock.acquire(timeout=30), where
    keeper._pipeline.lock.release()
    try:
        for ticket in (*scene.tickets, *scene.tickets_of_trays):
            ticket.outcome(30)
        keeper.flush(30)
    except TimeoutError as error:
        raise AssertionError(f"after an interrupt in {where}") from error
    assert len({keeper.fetch(id) == 3 for id in scene.together}) <= 1, where
    keeper.save(A, "after").result(30)
    keeper.save(B, "after", frozen=True).result(30)
    metrics = keeper.metrics()
    gauges = (
        metrics.pending,
        metrics.serialization_queue_entries,
        metrics.serialization_queue_bytes,
        metrics.storage_queue_entries,
        metrics.storage_queue_bytes,
    )
    assert gauges == (0, 0, 0, 0, 0), where
    completed = metrics.stored + metrics.superseded + metrics.dropped + metrics.rejected
    completed += metrics.expired + metrics.failed + metrics.closed
    assert metrics.saves == completed, where
    keeper.close(30)
    queues = (keeper._pipeline.serialization.queue, keeper._pipeline.storage.queue)
    assert [(len(q._waiting), len(q._ready), len(q.lanes), len(q.taken), len(q.line)) for q in queues] == [(0,) * 5] * 2
    # A save that was interrupted may have begun, and is then called back too.
    assert len(set(map(id, scene.heard))) == len(scene.heard), where
    assert {id(ticket) for ticket in scene.tickets} <= {id(ticket) for ticket in scene.heard}, where
    if not scene.quiet:
        assert len(scene.heard) == metrics.saves - 2, where


@pytest.mark.parametrize("overflow", ("block", "coalesce", "reject", "drop-oldest"))
def test_hundreds_of_interrupts_that_come_when_they_like(overflow, long_form, monkeypatch):
    """From another thread, so they may also come while the one before is being dealt with."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's own would be interrupted, too
    wanted = 3000 if long_form else 300
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    inside = False
    over = False
    interrupts = 0

    def on_signal(signum, frame) -> None:
        nonlocal interrupts
        if inside:
            interrupts += 1
            raise KeyboardInterrupt

    def interrupt_main() -> None:
        while not over:
            time.sleep(chance.uniform(0, 300e-6))
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    store = Faulty(MemoryBackend())
    keeper = SafeKeeper(store, overflow=overflow, storage_queue=Bounds(count=5), serialization_queue=Bounds(count=5))
    scene = Scene(keeper, store)
    before = signal.signal(signal.SIGUSR1, on_signal)
    interrupting = threading.Thread(target=interrupt_main)
    interrupting.start()
    until = time.monotonic() + 120
    try:
        for n in itertools.count():
            id, how = (A, B, C, D)[n % 4], n % 3
            with suppress(KeyboardInterrupt):
                try:
                    inside = True
                    scene.save(id, {"n": n}, frozen=how == 1, lock=LOCK if how == 2 else None)
                finally:
                    inside = False
            if interrupts >= wanted:
                break
            assert time.monotonic() < until, f"only {interrupts} interrupts"
    finally:
        over = True
        interrupting.join()
        signal.signal(signal.SIGUSR1, before)
    check(keeper, scene, None)
