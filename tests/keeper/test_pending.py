from __future__ import annotations

import pytest

from safekeeper import BadState, Closed
from safekeeper.keeper.pending import PendingState


class Encoder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, state, get_on=None):
        self.calls += 1
        if not state:
            raise BadState("nothing in it")
        return b"".join(state)


def test_the_bytes_are_made_once_and_are_those_of_the_state_as_its_owner_left_it():
    state, encode = [b"a"], Encoder()
    pending = PendingState(state, encode)
    pending.serialize()
    state.append(b"b")
    pending.serialize()
    assert not pending.done
    assert pending.take() == b"a"
    assert pending.done
    assert encode.calls == 1


def test_a_worker_that_comes_first_makes_the_bytes():
    encode = Encoder()
    pending = PendingState([b"a"], encode)
    assert pending.take() == b"a"
    pending.serialize()
    assert encode.calls == 1


def test_a_state_without_bytes_fails_for_the_worker_and_not_for_the_owner():
    encode = Encoder()
    pending = PendingState([], encode)
    pending.serialize()
    with pytest.raises(BadState, match="nothing in it"):
        pending.take()
    assert encode.calls == 1


def test_what_nobody_needs_any_more_is_not_serialized():
    encode = Encoder()
    pending = PendingState([b"a"], encode)
    pending.done = True
    pending.serialize()
    with pytest.raises(Closed, match="not needed any more"):
        pending.take()
    assert encode.calls == 0
