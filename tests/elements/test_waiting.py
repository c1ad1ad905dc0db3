"""A block belongs to one thread and one task; whoever could only wait for ever is told so."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from safekeeper import Checkpointed, Every, SafeKeeper
from safekeeper.elements import waiting

KEY = b"foo"

LIMIT = 60  # seconds: only for what would hang


@pytest.fixture
def keeper(store):
    with SafeKeeper(store) as keeper:
        yield keeper


@pytest.fixture
def group(keeper):
    with Checkpointed(keeper, "words", lambda: {"count": 0}) as group:
        yield group


def count(group, key=KEY):
    with group.event(key) as element:
        element.state["count"] += 1
    return element


@pytest.mark.parametrize("inner", ("event", "look"))
@pytest.mark.parametrize("outer", ("event", "look"))
def test_a_second_block_of_a_key_inside_the_first_is_refused(group, outer, inner):
    count(group)
    with getattr(group, outer)(KEY):
        with pytest.raises(RuntimeError, match="words/foo: this thread is inside a block of this key already"):
            getattr(group, inner)(KEY).__enter__()
        count(group, b"another key")
    assert count(group).state == {"count": 2}


def test_another_task_is_refused_while_one_is_inside_the_block(group):
    count(group)

    async def handle(inside: asyncio.Event, leave: asyncio.Event) -> None:
        with group.event(KEY) as element:
            seen = element.state["count"]
            inside.set()
            await leave.wait()
            element.state["count"] = seen + 1

    async def serve() -> None:
        inside, leave = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(handle(inside, leave))
        await inside.wait()
        for enter in (lambda: group.event(KEY).__enter__(), lambda: group.forget(KEY)):
            with pytest.raises(RuntimeError, match=r"words/foo: another asyncio task .* use `async with`"):
                enter()
        leave.set()
        await first

    asyncio.run(serve())
    assert count(group).state == {"count": 3}


def test_another_thread_waits_while_a_task_is_inside_the_block(group, eventually):
    async def serve() -> None:
        with group.event(KEY) as element:
            waiter = asyncio.create_task(asyncio.to_thread(count, group))
            while not waiting._wanted:
                await asyncio.sleep(0.005)
            element.state["count"] += 1
        await waiter

    asyncio.run(asyncio.wait_for(serve(), LIMIT))
    assert count(group).state == {"count": 3}


def test_blocks_in_opposite_order_are_an_error_in_one_thread_and_go_on_in_the_other(keeper, group):
    """Also where the two keys are in different groups."""
    with Checkpointed(keeper, "letters", lambda: {"count": 0}) as letters:
        errors = in_a_circle(((group, b"a"), (letters, b"b")))
        (error,) = errors
        for part in ("words/a", "letters/b", "for ever", "in one order"):
            assert part in str(error)


def test_a_circle_of_three_is_found(group):
    errors = in_a_circle(((group, b"a"), (group, b"b"), (group, b"c")))
    assert len(errors) == 1


def in_a_circle(places) -> list[RuntimeError]:
    """Let as many threads as places enter one each, and then the next one's; what they raised."""
    inside = threading.Barrier(len(places))
    errors = []

    def handle(n: int) -> None:
        (group, key), (then, other) = places[n], places[(n + 1) % len(places)]
        with group.event(key):
            inside.wait(LIMIT)
            try:
                count(then, other)
            except RuntimeError as error:
                errors.append(error)

    threads = [threading.Thread(target=handle, args=(n,), daemon=True) for n in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "they wait for each other for ever"
    return errors


def test_a_checkpoint_inside_a_block_never_saves_what_the_block_has_changed(keeper):
    with Checkpointed(keeper, "words", lambda: {"count": 0}, trigger=Every(events=1000)) as group:
        count(group)
        with group.event(KEY) as element:
            element.state["count"] = 1000
            with pytest.raises(RuntimeError, match="words/foo: this thread is inside a block of this key already"):
                group.checkpoint()
            element.state["count"] = 2
    assert keeper.fetch(element.id) == {"count": 2}


def test_a_checkpoint_inside_a_block_covers_the_events_before_it(store, keeper, group):
    """What has nothing to be saved need not be waited for."""
    with store.hold("write") as gate:
        ticket = count(group).ticket
        gate.wait_for(1)
        with group.event(KEY):
            assert group.checkpoint() == [ticket]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_looks_for_circles_harms_nobody():
    with waiting._lock:
        pid = os.fork()
        if pid == 0:
            free = waiting._lock.acquire(timeout=LIMIT)
            os._exit(0 if free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
