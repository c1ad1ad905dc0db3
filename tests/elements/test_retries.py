"""A save that failed is made again, less and less often, and told about once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from safekeeper import Backoff, BadState, Checkpointed, CheckpointId, Every, SafeKeeper

KEY = b"foo"
ID = CheckpointId("words", KEY)


class Choosy:
    """JSON that counts its tries and refuses everything while it is told to."""

    name = "choosy"

    def __init__(self) -> None:
        self.tries = 0
        self.refuses = False

    def dumps(self, state):
        self.tries += 1
        if self.refuses:
            raise TypeError("not now")
        return json.dumps(state).encode()

    def loads(self, data):
        return json.loads(data)


@dataclass(frozen=True, slots=True)
class Noted(Backoff):
    """Hardly any delay, and a note of what was asked."""

    asked: list[int] = field(default_factory=list)

    def delay(self, failures):
        self.asked.append(failures)
        return 0.001


NEVER = Backoff(first=1e6, most=1e6)


@pytest.fixture
def serializer():
    return Choosy()


@pytest.fixture
def keeper(store, serializer):
    with SafeKeeper(store, serializer=serializer) as keeper:
        yield keeper


def elements(keeper, **settings):
    return Checkpointed(keeper, "words", lambda: {"count": 0}, tick=0.005, **settings)


def spoil(group):
    with group.event(KEY) as element:
        element.state["count"] = {1, 2}  # a set has no JSON


def mend(group):
    with group.event(KEY) as element:
        element.state["count"] = 1
    return element


@pytest.mark.parametrize("ttl", (None, 0.001), ids=("no ttl", "ttl"))
@pytest.mark.parametrize("trigger", (Every(events=1), Every(seconds=0.001)), ids=str)
def test_what_cannot_be_serialized_is_not_tried_again_before_its_time(
    keeper, serializer, trigger, ttl, let_it_sweep, eventually
):
    with elements(keeper, trigger=trigger, ttl=ttl, backoff=NEVER) as group:
        spoil(group)
        eventually(lambda: serializer.tries == 1)
        let_it_sweep(group, times=10)
        assert serializer.tries == 1
        assert len(group) == 1
        mend(group)
    assert keeper.fetch(ID) == {"count": 1}


def test_the_delays_grow_with_the_failures_and_start_again_after_a_success(keeper, eventually):
    backoff = Noted()
    with elements(keeper, backoff=backoff) as group:
        spoil(group)
        eventually(lambda: len(backoff.asked) >= 5)
        mend(group).ticket.result()
        assert backoff.asked == list(range(1, len(backoff.asked) + 1))
        before = len(backoff.asked)
        spoil(group)
        eventually(lambda: len(backoff.asked) > before)
        assert backoff.asked[before] == 1
        mend(group)


def test_it_is_told_once_however_often_it_is_tried(keeper, eventually, caplog):
    backoff = Noted()
    with elements(keeper, backoff=backoff) as group:
        spoil(group)
        eventually(lambda: len(backoff.asked) >= 10)
        mend(group)
    lines = [record.getMessage() for record in caplog.records if "words/foo" in record.getMessage()]
    (line,) = [line for line in lines if "cannot be stored" in line]
    assert "choosy cannot serialize this dict" in line
    assert "forget it" in line
    assert keeper.metrics().failed == 1
    assert len(lines) == 2, "the other one is the keeper's, about the save that failed"


def test_what_can_be_serialized_again_is_stored(keeper, serializer, eventually):
    with elements(keeper, backoff=Noted()) as group:
        serializer.refuses = True
        mend(group)
        eventually(lambda: serializer.tries >= 3)
        serializer.refuses = False
        eventually(lambda: keeper.fetch(ID) == {"count": 1})


@pytest.mark.parametrize("nbytes", (0, 100_000), ids=("small", "large"))
def test_a_checkpoint_and_close_do_not_wait_for_the_delay(keeper, nbytes):
    group = elements(keeper, backoff=NEVER)
    with group.event(KEY) as element:
        element.state = {"count": {1, 2}, "text": "x" * nbytes}
    with pytest.raises(BadState, match="choosy cannot serialize"):
        element.ticket.result()
    for ticket in group.checkpoint():
        with pytest.raises(BadState, match="choosy cannot serialize"):
            ticket.result()
    with pytest.raises(BadState, match="1 element is not stored: words/foo: choosy cannot serialize"):
        group.close()
    mend(group)
    group.close()
