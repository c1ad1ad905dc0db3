from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext

import pytest

from safekeeper import BadState, Batch, Bounds, CheckpointId, Closed, Conflict, Receipt, SafeKeeper, Unavailable
from safekeeper.aio import AsyncKeeper
from safekeeper.backends.memory import MemoryBackend

A, B, C = (CheckpointId("group", key) for key in (b"a", b"b", b"c"))


def test_the_same_keeper_awaited(store):
    async def main():
        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            assert isinstance(await keeper.save(A, {"count": 41}), Receipt)
            assert await keeper.fetch(A) == {"count": 41}
            await keeper.save(B, "x" * 10_000, frozen=True)
            assert {key async for key, _ in keeper.recover("group")} == {b"a", b"b"}
            await keeper.forget(A)
            assert await keeper.fetch(A) is None
            store.fail("write", error=Conflict("injected"))
            with pytest.raises(Conflict):
                await keeper.save(A, 1)
            await keeper.flush()
        with pytest.raises(Closed):
            await keeper.save(A, 1)

    asyncio.run(main())


def test_recovery_goes_to_another_thread_once_a_batch(store, monkeypatch):
    hops, to_thread = [], asyncio.to_thread

    def counted(*call):
        hops.append(call)
        return to_thread(*call)

    async def main():
        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            await asyncio.gather(*(keeper.save(CheckpointId("group", b"%d" % n), n) for n in range(1000)))
            monkeypatch.setattr(asyncio, "to_thread", counted)
            assert sorted([state async for _, state in keeper.recover("group", batch=100)]) == list(range(1000))
            assert len(hops) == 11
            store.fail("read")
            with pytest.raises(Unavailable):
                [state async for _, state in keeper.recover("group")]

    asyncio.run(main())


def test_saves_that_are_awaited_together_share_batches(store):
    async def main():
        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            await asyncio.gather(*(keeper.save(CheckpointId("group", b"%d" % n), n) for n in range(1000)))
            assert keeper.keeper.metrics().stored == 1000
            assert store.calls["write"] < 500

    asyncio.run(main())


def test_a_full_queue_and_a_stuck_store_do_not_block_the_loop(store):
    async def main():
        keeper = AsyncKeeper(SafeKeeper(store, overflow="block", storage_queue=Bounds(count=1)))
        with store.hold("write") as gate:
            saves = [asyncio.create_task(keeper.save(A, 1))]
            await asyncio.to_thread(gate.wait_for, 1)
            state = [1]
            saves += [asyncio.create_task(keeper.save(id, state)) for id in (B, C)]
            await asyncio.sleep(0.05)  # the loop runs on
            state.append(2)
            assert not any(task.done() for task in saves)
        await asyncio.gather(*saves)
        assert await keeper.fetch(C) == [1], "it was serialized when save was called, although it had to wait"
        await keeper.close()

    asyncio.run(main())


async def _begin(save) -> asyncio.Task:
    """A task that has called *save* and waits."""
    task = asyncio.create_task(save)
    await asyncio.sleep(0)
    return task


@pytest.fixture
def full(store):
    """A keeper whose store is stuck and whose queue is full; the gate lets the store go on."""
    keeper = SafeKeeper(store, overflow="block", storage_queue=Bounds(count=1))
    with store.hold("write") as gate:
        keeper.save(C, 0)
        gate.wait_for(1)
        keeper.save(B, 0)
        yield AsyncKeeper(keeper), gate
    keeper.close()


def test_saves_of_an_id_keep_their_order_when_they_wait_for_room(full):
    keeper, gate = full

    async def main():
        saves = [await _begin(keeper.save(A, n)) for n in range(50)]
        gate.release()
        saves += [await _begin(keeper.save(A, n)) for n in range(50, 100)]
        await asyncio.gather(*saves)
        assert await keeper.fetch(A) == 99

    asyncio.run(main())


def test_saves_that_wait_for_room_go_on_when_their_tasks_are_cancelled(store, full):
    keeper, gate = full

    async def main():
        saves = [await _begin(keeper.save(CheckpointId("many", b"%d" % n), n)) for n in range(50)]
        for save in saves:
            save.cancel()
        assert len(await asyncio.gather(*saves, return_exceptions=True)) == 50
        gate.release()
        await keeper.flush()
        assert len(list(store.keys("many"))) == 50

    asyncio.run(main())


def test_a_save_that_waits_for_room_has_its_own_deadline_and_close_waits_for_it(store, full):
    keeper, gate = full

    async def main():
        patient = await _begin(keeper.save(A, 1, deadline=1000))
        with pytest.raises(Unavailable, match="deadline"):
            await keeper.save(CheckpointId("group", b"hurried"), 1, deadline=0.02)
        closing = await _begin(keeper.close())
        while keeper.keeper._pipeline._closed is None:
            await asyncio.sleep(0.01)
        with pytest.raises(Closed):
            await keeper.save(A, 2)
        gate.release()
        await asyncio.gather(patient, closing)
        assert store.inner.read([A]) != [None]

    asyncio.run(main())


def test_without_a_thread_to_wait_a_save_fails_at_its_deadline_and_the_next_one_gets_one(full, monkeypatch):
    keeper, gate = full

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    async def main():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            first = await _begin(keeper.save(A, 1, deadline=0.02))
        gate.release()
        await keeper.save(A, 2)
        assert await keeper.fetch(A) == 2
        await asyncio.wait([first])

    asyncio.run(main())


def test_a_ticket_is_awaited_by_several_tasks_and_says_why_a_save_failed(store):
    async def main():
        with SafeKeeper(store) as keeper:
            with store.hold("write") as gate:
                tickets = [keeper.save(A, n) for n in range(3)]
                await asyncio.to_thread(gate.wait_for, 1)
                waiting = [asyncio.create_task(AsyncKeeper(keeper).flush()) for _ in range(2)]
                waiting += [asyncio.ensure_future(ticket) for ticket in [*tickets, *tickets]]
                await asyncio.sleep(0.01)
                assert not any(task.done() for task in waiting)
            await asyncio.gather(*waiting)
            assert isinstance(await tickets[0], Receipt), "one that has completed"
            store.fail("write", error=Conflict("injected"))
            with pytest.raises(Conflict):
                await keeper.save(A, 1)

    asyncio.run(main())


def test_awaiting_a_superseded_save_ends_at_its_own_deadline(store):
    async def main():
        with SafeKeeper(store) as keeper:
            with store.hold("write") as gate:
                keeper.save(B, 0)
                await asyncio.to_thread(gate.wait_for, 1)
                hurried, patient = keeper.save(A, 1, deadline=0.05), keeper.save(A, 2, deadline=1000)
                with pytest.raises(Unavailable, match="deadline"):
                    await hurried
            await patient

    asyncio.run(main())


def test_a_cancelled_wait_leaves_nobody_waiting_in_the_ticket(store):
    async def main():
        with SafeKeeper(store) as keeper, store.hold("write"):
            ticket = keeper.save(A, 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ticket, 0.01)
            assert not ticket.carrier.waiters

    asyncio.run(main())


def test_a_save_of_a_thread_never_overtakes_one_of_the_loop_that_waits_for_room(full):
    keeper, gate = full

    async def main():
        waiting = [keeper.keeper.save(A, n) for n in range(3)]
        later = asyncio.create_task(asyncio.to_thread(keeper.keeper.save, A, 3))
        await asyncio.sleep(0.05)
        assert not later.done(), "a thread may wait for room, and does"
        gate.release()
        await (await later)
        await asyncio.gather(*map(asyncio.ensure_future, waiting))
        assert await keeper.fetch(A) == 3

    asyncio.run(main())


def test_a_cancelled_task_leaves_its_save_alone(store):
    async def main():
        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            with store.hold("write") as gate:
                task = asyncio.create_task(keeper.save(A, 1))
                await asyncio.to_thread(gate.wait_for, 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await keeper.fetch(A) == 1

    asyncio.run(main())


def test_a_loop_that_is_gone_disturbs_nobody(store, caplog):
    keeper = SafeKeeper(store)
    with store.hold("write"), pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(AsyncKeeper(keeper).save(A, 1), 0.01))
    keeper.close()
    assert keeper.metrics().stored == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_recover_goes_on_after_a_bad_state(store):
    errors = {}

    async def run():
        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            await keeper.save(A, 1)
            store.write(Batch({B: b"no state"}))
            return [item async for item in keeper.recover("group", on_error=errors.__setitem__)]

    assert asyncio.run(run()) == [(b"a", 1)]
    assert isinstance(errors[B], BadState)


def test_a_url_is_not_a_keeper():
    with pytest.raises(TypeError, match=r"'memory:': write AsyncKeeper\(SafeKeeper\(...\)\)"):
        AsyncKeeper("memory:")


@pytest.mark.parametrize("pending", (False, True), ids=("no room", "an earlier one is being serialized"))
def test_saves_together_wait_in_line_and_keep_their_order(tmp_path, pending):
    """In a loop `save_together` returns at once, and what is saved later comes later."""
    lock = threading.Lock()

    async def main():
        keeper = SafeKeeper(f"lmdb://{tmp_path}/store", overflow="block", storage_queue=Bounds(count=2))
        with lock:
            first = keeper.save(A, 0, lock=lock) if pending else None
            tickets = [keeper.save_together({A: n, B: n}) for n in range(1, 20)]
            assert first is None or not any(ticket.done() for ticket in tickets)
        last = keeper.save(A, 20)
        for ticket in [*tickets, last]:
            await ticket
        assert [await asyncio.to_thread(keeper.fetch, id) for id in (A, B)] == [20, 19]
        await asyncio.to_thread(keeper.close)

    asyncio.run(main())


class WithTurns(MemoryBackend):
    """Lets nothing be written before it is told to."""

    def __init__(self):
        super().__init__()
        self.asked, self.let_go = threading.Event(), threading.Event()

    def turn(self, group, nbytes):
        self.asked.set()
        self.let_go.wait(60)
        return nullcontext()


def test_a_state_as_of_its_turn_is_taken_in_the_loop_which_goes_on_meanwhile():
    async def main():
        store, state, taken_in = WithTurns(), {"count": 1}, []

        def snapshot():
            taken_in.append(threading.current_thread())
            return dict(state)

        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            saving = asyncio.create_task(keeper.save_at_turn(A, snapshot, nbytes=100))
            while not store.asked.is_set():
                await asyncio.sleep(0.001)
            state["count"] = 2  # after the save was asked for, before its turn
            assert not taken_in
            store.let_go.set()
            assert isinstance(await saving, Receipt)
            assert await keeper.fetch(A) == {"count": 2}
        assert taken_in == [threading.current_thread()]

    asyncio.run(main())


def test_a_snapshot_that_fails_is_told_and_one_that_is_cancelled_is_saved_all_the_same():
    async def main():
        store = WithTurns()
        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            saving = asyncio.create_task(keeper.save_at_turn(A, lambda: 1, nbytes=100))
            while not store.asked.is_set():
                await asyncio.sleep(0.001)
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
            store.let_go.set()
            while await keeper.fetch(A) is None:
                await asyncio.sleep(0.001)
            with pytest.raises(ZeroDivisionError):
                await keeper.save_at_turn(A, lambda: 1 / 0, nbytes=100)
            assert await keeper.fetch(A) == 1

    asyncio.run(main())
