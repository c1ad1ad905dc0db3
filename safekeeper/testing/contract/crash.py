"""The part of the contract about the death of a writing process."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar, cast

import pytest

import safekeeper
from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    Scope,
    SupportsAtomicBatch,
    SupportsSomeAtomicBatches,
    Survives,
)
from safekeeper.testing.contract.base import LONG, Kit, Opener, check_value, get, put
from safekeeper.testing.kill import THREADS, State, Story, run_and_kill
from safekeeper.testing.peer import Peer

SEED_VARIABLE = "SAFEKEEPER_KILL_SEED"

_UNDER_WAY_FOR = 30.0
"""Seconds within which a server, however busy, has carried out what a process had sent before it was killed."""

Test = TypeVar("Test", bound=Callable[..., None])


def crash_test(test: Test) -> Test:
    """Mark *test* as one of the `crash` tests where that marker is declared; elsewhere it is a test like any other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pytest.PytestUnknownMarkWarning)
        try:
            mark = pytest.mark.crash
        except pytest.fail.Exception:  # --strict-markers
            return test
    return cast("Test", mark(test))


class CrashContract(Kit):
    """An acknowledged write survives what the backend declares, as far as a test can cause it."""

    @crash_test
    def test_acknowledged_writes_survive_kill_9_at_any_moment(self, url: str, opened: Opener, group: str) -> None:
        with safekeeper.open(url) as store:
            if Survives.PROCESS not in store.survives:
                pytest.skip("this backend does not declare that a write survives the end of its process")
            others_see_it = store.scope >= Scope.HOST
            on_this_host = store.scope == Scope.HOST
            patience = _UNDER_WAY_FOR if store.scope == Scope.NETWORK else 0.0
        witnesses = [opened()] if others_see_it else []
        seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(32))
        print(f"the writes and kills follow from {SEED_VARIABLE}={seed}")
        random = Random(seed)  # noqa: S311 - it has to be repeatable
        state: State = {}
        for number in range(self.long_kills if LONG else self.kills):
            story = Story(group, random.getrandbits(32))
            acknowledged = run_and_kill(url, story, random)
            possible = [story.states_after(thread, steps, state) for thread, steps in enumerate(acknowledged)]
            with safekeeper.open(url) as fresh:
                stores = [fresh, *witnesses]
                seen = _read_when_settled(stores, story, patience)
                for settled, begun in possible:
                    _check(seen, settled, begun, _is_whole(fresh, settled, begun))
                if patience:
                    _write_again(fresh, seen)
                mark = CheckpointId(group, b"kills")
                put(fresh, mark, b"%d" % number)
                assert get(fresh, mark) == b"%d" % number
                if on_this_host:
                    # A process that writes already may leave alone what the dead one has left. A new one takes it over.
                    with Peer(url) as peer:
                        put(peer, mark, b"%d, by another process" % number)
                # That may bring out a step that was begun, unless its ids were written again. It takes back nothing
                # that was seen.
                state = _read_by_all(stores, story)
                for _, begun in possible:
                    settled = {id: seen[id] for id in begun}
                    _check(state, settled, settled if patience else begun, _is_whole(fresh, settled, begun))


def _read_when_settled(stores: Sequence[Backend], story: Story, patience: float) -> State:
    """What all *stores* see. While what the dead process has sent may still be under way, they are asked again when
    they do not agree."""
    give_up = time.monotonic() + patience
    while True:
        try:
            return _read_by_all(stores, story)
        except AssertionError:
            if time.monotonic() >= give_up:
                raise
            time.sleep(0.05)


def _write_again(store: Backend, seen: State) -> None:
    """Write what was *seen*: afterwards nothing that is still under way can happen any more."""
    batch = Batch()
    for id, value in seen.items():
        batch.delete(id) if value is None else batch.put(id, value)
    store.write(batch)


def _read_by_all(stores: Sequence[Backend], story: Story) -> State:
    """What all *stores* see, which must be the same. The last ones were open all the time."""
    seen, *others = [_read_all(store, story) for store in stores]
    for other in others:
        assert other == seen, "a handle that was open all the time sees something else"
    return seen


def _read_all(store: Backend, story: Story) -> State:
    """The values of all ids of *story*; the lists of keys and groups must agree with them."""
    ids = [id for thread in range(THREADS) for id in story.ids(thread)]
    seen = dict(zip(ids, store.read(ids), strict=True))
    there = {id for id, value in seen.items() if value is not None}
    groups = {id.group for id in ids}
    assert {CheckpointId(group, key) for group in groups for key in store.keys(group)} == there
    assert groups & set(store.groups()) == {id.group for id in there}
    return seen


def _is_whole(store: Backend, settled: State, begun: State) -> bool:
    """Whether *store* says that the step from *settled* to *begun* happens as a whole."""
    if not isinstance(store, SupportsSomeAtomicBatches):
        return isinstance(store, SupportsAtomicBatch)
    step = Batch()
    for id, value in begun.items():
        if value != settled[id]:
            step.delete(id) if value is None else step.put(id, value)
    return store.why_not_atomic(step) is None


def _check(seen: State, settled: State, begun: State, whole: bool) -> None:
    """Each id is as in *settled*, which must not be lost, or as the step *begun* after it left it; with *whole*, all
    alike."""
    for id in settled:
        check_value(id, seen[id], settled[id], begun[id])
    if whole:
        found = {id: seen[id] for id in settled}
        assert found in (settled, begun), "half a batch was written, and the backend says that it cannot happen"
