"""Outputs for sinks that are not streams come again until they are done."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper import Closed
from safekeeper.streams import Outbox
from safekeeper.streams.retained import Retained
from safekeeper.testing.sending import numbered

PATIENCE = 60


def test_outputs_come_in_order_and_are_acknowledged_when_they_are_done():
    outbox = Outbox()
    outbox.send(numbered(1, b"a", b"b", b"c"))
    given_now = [outbox.take(0) for _ in range(4)]
    assert given_now == [*numbered(1, b"a", b"b", b"c"), None]
    outbox.done(2)
    assert outbox.acknowledged() == {"outbox": 0}
    assert len(outbox) == 2
    outbox.done(1)
    assert outbox.acknowledged() == {"outbox": 2}
    outbox.done(1)
    outbox.done(3)
    assert outbox.acknowledged() == {"outbox": 3}
    assert not outbox.retains


def test_what_is_not_done_comes_again_and_others_meanwhile():
    outbox = Outbox(again=0.01)
    outbox.send(numbered(1, b"fails", b"works"))
    seen = []
    while seen.count(1) < 4:
        output = outbox.take(PATIENCE)
        seen.append(output.number)
        if output.number == 2:
            outbox.done(2)
    assert seen == [1, 2, 1, 1, 1]
    outbox.done(1)
    assert outbox.take(0.1) is None


def test_who_recovers_begins_with_what_was_not_done():
    outbox = Outbox()
    outbox.send(numbered(41, b"a"))
    outbox.send(numbered(41, b"a", b"b"))
    assert outbox.last == 42
    assert [outbox.take(0).number for _ in range(2)] == [41, 42]
    outbox.done(40)
    outbox.done(41)
    assert outbox.acknowledged() == {"outbox": 41}


@pytest.mark.parametrize("number", (3, 100))
def test_what_was_never_given_cannot_be_done(number):
    outbox = Outbox()
    outbox.send(numbered(1, b"a", b"b"))
    with pytest.raises(ValueError, match="was never given"):
        outbox.done(number)
    with pytest.raises(ValueError, match="was never given"):
        Outbox().done(1)


def test_an_empty_one_is_not_nothing():
    assert Outbox()
    assert len(Outbox()) == 0
    assert Retained(["reader"])


def test_again_is_a_time():
    with pytest.raises(ValueError, match="more than 0 seconds"):
        Outbox(again=0)


def test_several_threads_share_the_outputs_until_it_is_closed():
    outbox, seen = Outbox(again=PATIENCE), [[], [], []]

    def work(mine):
        for output in outbox:
            mine.append(output.number)
            outbox.done(output.number)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for first in range(1, 300, 10):
        outbox.send(numbered(first, *[b"x"] * 10))
    done = threading.Event()
    while outbox.acknowledged() != {"outbox": 300}:
        assert not done.wait(0.01)
    outbox.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(number for mine in seen for number in mine) == list(range(1, 301))
    with pytest.raises(Closed):
        outbox.send(numbered(301, b"x"))


def test_tasks_of_asyncio_get_them_too():
    async def main():
        outbox, seen = Outbox(again=0.05), []

        async def work():
            async for output in outbox:
                seen.append(output.number)
                if seen.count(output.number) == 2 or output.number != 2:
                    outbox.done(output.number)

        task = asyncio.create_task(work())
        await asyncio.to_thread(outbox.send, numbered(1, b"a", b"b", b"c"))
        while outbox.acknowledged() != {"outbox": 3}:
            await asyncio.sleep(0.01)
        outbox.close()
        await asyncio.wait_for(task, PATIENCE)
        assert seen == [1, 2, 3, 2]

    asyncio.run(main())


@given(st.lists(st.tuples(st.sampled_from(("send", "take", "done", "restart")), st.integers(1, 6))))
def test_nothing_is_lost_and_nothing_comes_after_it_was_done(steps):
    """The operator's side is a list: what was emitted, and up to where it was acknowledged."""
    outbox, emitted, confirmed, done, taken = Outbox(again=1e-9), 0, 0, set(), set()
    for step, amount in steps:
        if step == "send":
            emitted += amount
            outbox.send(numbered(confirmed + 1, *(b"%d" % n for n in range(confirmed + 1, emitted + 1))))
        elif step == "take":
            for _ in range(amount):
                if (output := outbox.take(0)) is not None:
                    assert output.number not in done
                    assert output.body == b"%d" % output.number
                    taken.add(output.number)
        elif step == "done":
            for number in sorted(taken)[:amount]:
                outbox.done(number)
                done.add(number)
                taken.remove(number)
        else:
            confirmed = max(confirmed, outbox.acknowledged()["outbox"])
            outbox.close()
            outbox, taken = Outbox(again=1e-9), set()
            done = set(range(1, confirmed + 1))
            outbox.send(numbered(confirmed + 1, *(b"%d" % n for n in range(confirmed + 1, emitted + 1))))
        first_left = next(n for n in range(1, emitted + 2) if n not in done)
        assert emitted == 0 or outbox.acknowledged()["outbox"] in (first_left - 1, 0)
    left = {number for number in range(1, emitted + 1) if number not in done}
    seen = set()
    while seen != left:
        seen.add(outbox.take(PATIENCE).number)
