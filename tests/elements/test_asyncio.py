"""`async with` excludes tasks and threads alike, never keeps the loop waiting, and may be cancelled anywhere."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from safekeeper import Bounds, Checkpointed, CheckpointId, Every, HalfDone, SafeKeeper, Unavailable
from safekeeper.elements import waiting

KEY = b"foo"
ID = CheckpointId("words", KEY)
LIMIT = 60  # seconds: only for what would hang


@pytest.fixture
def keeper(store):
    with SafeKeeper(store) as keeper:
        yield keeper


@pytest.fixture
def group(keeper):
    with Checkpointed(keeper, "words", lambda: {"count": 0}) as group:
        yield group


def run(main):
    return asyncio.run(asyncio.wait_for(main, LIMIT))


async def count(group, key=KEY, **settings):
    async with group.event(key, **settings) as element:
        element.state["count"] += 1
    return element


def count_in_thread(group, key=KEY):
    with group.event(key) as element:
        element.state["count"] += 1
    return element


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


def test_the_loop_of_a_service(keeper, group):
    async def main():
        for n in range(1, 4):
            element = await count(group)
            await element.ticket
            assert keeper.fetch(ID) == {"count": n}
        async with group.look(KEY) as state:
            assert state == {"count": 3}
        async with group.look(b"unknown") as state:
            assert state is None
        for ticket in await group.acheckpoint():
            await ticket
        await (await group.aforget(KEY))
        assert keeper.fetch(ID) is None
        assert await group.arecover() == 0

    run(main())


def test_the_block_of_the_group_saves_at_its_end(keeper):
    async def main():
        async with Checkpointed(keeper, "words", lambda: {"count": 0}, trigger=None) as group:
            await count(group)
        assert keeper.fetch(ID) == {"count": 1}

    run(main())


def test_tasks_and_threads_exclude_each_other(keeper, long_form):
    """Each reads, lets others run, and writes: whoever came in between would be lost."""
    each = 2000 if long_form else 100

    async def handle(group):
        for _ in range(each):
            async with group.event(KEY) as element:
                seen = element.state
                await asyncio.sleep(0)
                element.state = seen + 1

    def handle_in_thread(group):
        for _ in range(each):
            with group.event(KEY) as element:
                seen = element.state
                time.sleep(0)
                element.state = seen + 1

    async def serve(group):
        threads = [asyncio.to_thread(handle_in_thread, group) for _ in range(2)]
        await asyncio.gather(*(handle(group) for _ in range(5)), *threads)

    with Checkpointed(keeper, "words", lambda: 0, trigger=Every(events=50)) as group:
        loops = [threading.Thread(target=run, args=(serve(group),)) for _ in range(2)]  # two loops at once
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()
    assert keeper.fetch(ID) == 2 * 7 * each
    assert not waiting._wanted


def test_those_who_wait_get_the_element_in_the_order_in_which_they_came(group):
    order = []

    async def handle(n):
        async with group.event(KEY):
            order.append(n)

    async def main():
        async with group.event(KEY):
            tasks = []
            for n in range(10):
                tasks.append(asyncio.create_task(handle(n)))
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order == list(range(10))

    run(main())


@pytest.mark.parametrize("what", ("load", "hold", "save"))
def test_the_loop_goes_on_while(store, what):
    """A stuck store and a block of a thread keep the task waiting, and nobody else."""

    async def main(keeper, group):
        method = "read" if what == "load" else "write"
        inside, leave, others = threading.Event(), threading.Event(), []

        def hold():
            with group.event(KEY):
                inside.set()
                leave.wait(LIMIT)

        with store.hold(method) as gate:
            if what == "save":
                for n in range(5):
                    others.append(asyncio.create_task(count(group, b"%d" % n)))
                await asyncio.to_thread(gate.wait_for, 1)
            if what == "hold":
                thread = threading.Thread(target=hold)
                thread.start()
                inside.wait(LIMIT)
            waiter = asyncio.create_task(_stored(group))
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not waiter.done()
            leave.set()
        await asyncio.gather(waiter, *others)

    keeper = SafeKeeper(store, overflow="block", storage_queue=Bounds(count=1))
    with keeper, Checkpointed(keeper, "words", lambda: {"count": 0}) as group:
        run(main(keeper, group))


async def _stored(group):
    await (await count(group)).ticket


def test_a_checkpoint_waits_for_a_task_in_its_block_and_the_task_goes_on(keeper):
    async def main():
        async with Checkpointed(keeper, "words", lambda: {"count": 0}, trigger=None) as group:
            await count(group)
            async with group.event(KEY) as element:
                checkpoint = asyncio.create_task(group.acheckpoint())
                await until(lambda: waiting._wanted)
                element.state["count"] += 1
            for ticket in await checkpoint:
                await ticket
            assert keeper.fetch(ID) == {"count": 2}

    run(main())


def test_what_would_wait_for_itself_is_refused(group):
    async def main():
        async with group.event(KEY) as element:
            element.state["count"] += 1
            with pytest.raises(RuntimeError, match="inside a block of this key already"):
                await count(group)
            with pytest.raises(RuntimeError, match="inside a block of this key already"):
                count_in_thread(group)
            with pytest.raises(RuntimeError, match="inside a block of this key already"):
                await group.acheckpoint(KEY)
            with pytest.raises(RuntimeError, match=r"another asyncio task of this thread .* use `async with`"):
                await asyncio.create_task(_call(lambda: count_in_thread(group)))
        await (await group.aforget(KEY))

    run(main())


async def _call(function):
    return function()


def test_an_event_may_forget_its_own_key(keeper, group):
    async def main():
        await count(group)
        async with group.event(KEY):
            ticket = group.forget(KEY)
        await ticket
        assert keeper.fetch(ID) is None
        async with group.event(KEY) as element:
            await group.aforget(KEY)
        assert element.gone

    run(main())


def test_tasks_in_opposite_order_are_an_error_in_one_and_go_on_in_the_others(group):
    """Two tasks and a thread, in a circle."""
    errors = []
    both = threading.Barrier(2)

    async def task(first, second, others):
        async with group.event(first):
            others.release()
            while others._value < 2:
                await asyncio.sleep(0.001)
            if first == b"a":
                await asyncio.to_thread(both.wait, LIMIT)
            try:
                await count(group, second)
            except RuntimeError as error:
                errors.append(error)

    def thread():
        with group.event(b"c"):
            both.wait(LIMIT)
            try:
                count_in_thread(group, b"a")
            except RuntimeError as error:
                errors.append(error)

    async def main():
        others = asyncio.Semaphore(0)
        await asyncio.gather(
            task(b"a", b"b", others), task(b"b", b"c", others), asyncio.to_thread(thread), return_exceptions=False
        )

    run(main())
    assert len(errors) == 1
    assert "in one order everywhere" in str(errors[0])


def test_an_element_given_to_a_loop_that_was_closed_goes_to_the_next(group, eventually):
    element = count_in_thread(group)
    inside, leave = threading.Event(), threading.Event()
    threads = [threading.Thread(target=_hold_in_thread, args=(group, KEY, inside, leave))]
    threads[0].start()
    inside.wait(LIMIT)
    loop = asyncio.new_event_loop()
    task = loop.create_task(count(group))
    loop.run_until_complete(asyncio.sleep(0))
    assert len(element.line) == 1
    loop.close()
    threads.append(threading.Thread(target=count_in_thread, args=(group,)))
    threads[1].start()
    eventually(lambda: len(element.line) == 2)
    leave.set()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    task._log_destroy_pending = False
    assert element.state == {"count": 3}


# Cancellation


class Cancelled:
    """Runs a coroutine and cancels it at its *n*-th await: before what it waits for has come, or just after."""

    def __init__(self, coroutine, at, *, after):
        self.coroutine, self.at, self.after = coroutine, at, after
        self.reached = False

    def __await__(self):
        for n in range(1_000_000):
            try:
                future = self.coroutine.send(None)
            except StopIteration as done:
                return done.value
            if n == self.at:
                self.reached = True
                if self.after:
                    yield future
                self.coroutine.throw(asyncio.CancelledError())
                raise AssertionError("it was cancelled and goes on")
            yield future


SCENES = ("new", "in the store", "taken by a thread", "taken by a task", "large", "undo", "awaits inside", "full queue")


@pytest.mark.parametrize("after", (False, True), ids=("before", "after"))
@pytest.mark.parametrize("scene", SCENES)
def test_a_task_that_is_cancelled_at_any_await_leaves_no_lock_held_and_nothing_half_done_unnoticed(store, scene, after):
    awaits = 0
    while _cancel_at(store, scene, awaits, after):
        awaits += 1
    assert awaits >= 1, "loading, holding, serializing or the ticket: something was awaited"


def _cancel_at(store, scene, at, after) -> bool:
    """Whether there was an await to be cancelled at."""
    key = b"%s-%d-%d" % (scene.encode(), at, after)
    id = CheckpointId("words", key)
    text = "x" * 100_000 if scene in ("large", "undo") else ""
    bounds = Bounds(count=1) if scene == "full queue" else Bounds()
    keeper = SafeKeeper(store, overflow="block", storage_queue=bounds)
    begun = acknowledged = 0
    with keeper, Checkpointed(keeper, "words", lambda: {"count": 0, "text": text}, tick=0.01) as group:

        async def handle():
            nonlocal begun, acknowledged
            async with group.event(key, undo=scene == "undo") as element:
                begun += 1
                element.state["count"] += 1
                if scene in ("awaits inside", "undo"):
                    await asyncio.sleep(0)
            await element.ticket
            acknowledged += 1

        async def main() -> bool:
            nonlocal begun, acknowledged
            if scene != "new":
                await handle()
            if scene in ("large", "undo"):
                with store.hold("write"):
                    await count(group, key)  # one that is under way, whose state is not serialized yet
                    begun += 1
            if scene == "in the store":
                element = group._memory.elements[key]
                with element.held():
                    group._memory.drop(element)
            others = []
            if scene.startswith("taken"):
                inside, leave = threading.Event(), threading.Event()
                if scene == "taken by a task":
                    others = [asyncio.create_task(_hold(group, key, inside, leave))]
                else:
                    others = [asyncio.create_task(asyncio.to_thread(_hold_in_thread, group, key, inside, leave))]
                await until(inside.is_set)
                begun += 1
                asyncio.get_running_loop().call_later(0.01, leave.set)
            if scene == "full queue":
                others = [asyncio.create_task(count(group, b"other-%d" % n)) for n in range(5)]
            cancelled = Cancelled(handle(), at, after=after)
            try:
                await cancelled
            except asyncio.CancelledError:
                assert cancelled.reached
            await asyncio.gather(*others)
            try:
                await handle()
            except HalfDone:
                assert scene == "awaits inside", "it was cancelled inside its block"
                for ticket in await group.acheckpoint(key):
                    await ticket
                await handle()
            return cancelled.reached

        reached = run(main())
        assert not waiting._wanted
        assert not any(element.lock.locked() or element.line for element in group._memory.elements.values())
    stored = SafeKeeper(store).fetch(id)["count"]
    assert acknowledged <= stored <= begun
    return reached


async def _hold(group, key, inside, leave):
    async with group.event(key) as element:
        inside.set()
        await until(leave.is_set)
        element.state["count"] += 1


def _hold_in_thread(group, key, inside, leave):
    with group.event(key) as element:
        inside.set()
        leave.wait(LIMIT)
        element.state["count"] += 1


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(4))
def test_many_tasks_are_cancelled_at_random(store, seed, long_form):
    """With evictions, a store that fails, threads beside the tasks: what was acknowledged is stored, nothing hangs."""
    seed = random.SystemRandom().randrange(1 << 30) if long_form else seed
    print("seed", seed)
    dice = random.Random(seed)
    keys = [b"%d" % n for n in range(8)]
    begun, acknowledged = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    keeper = SafeKeeper(store, overflow=dice.choice(("block", "coalesce")), storage_queue=Bounds(count=5))

    async def handle(group):
        key = dice.choice(keys)
        try:
            async with group.event(key, undo=True) as element:
                begun[key] += 1
                element.state += 1
                if dice.random() < 0.3:
                    await asyncio.sleep(0)
            await element.ticket
            acknowledged[key] += 1
        except Unavailable:
            pass

    async def main(group):
        for _ in range(300 if long_form else 30):
            if dice.random() < 0.2:
                store.fail(dice.choice(("read", "write")), when=dice.choice(("before", "after")))
            tasks = [asyncio.create_task(handle(group)) for _ in range(20)]
            tasks += [asyncio.create_task(group.acheckpoint())]
            await asyncio.sleep(dice.random() * 0.005)
            for task in tasks:
                if dice.random() < 0.5:
                    task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert result is None or isinstance(result, asyncio.CancelledError | list), result

    with keeper:
        with Checkpointed(keeper, "words", lambda: 0, ttl=0.001, tick=0.002, trigger=Every(events=1)) as group:
            run(main(group)) if not long_form else asyncio.run(main(group))
            assert not waiting._wanted
            for element in list(group._memory.elements.values()):
                with element.held():
                    assert element.half_done is None
        stored = dict(keeper.recover("words"))
    for key in keys:
        assert acknowledged[key] <= stored.get(key, 0) <= begun[key], (seed, key)


def test_a_key_may_be_a_str(keeper):
    async def main():
        async with Checkpointed(keeper, "words", dict, trigger=None) as group:
            async with group.event("foo") as element:
                element.state["count"] = 1
            (ticket,) = await group.acheckpoint("foo")
            await ticket
            assert keeper.fetch(ID) == {"count": 1}
            await (await group.aforget("foo"))
            assert keeper.fetch(ID) is None

    asyncio.run(main())
