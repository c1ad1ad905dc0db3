from __future__ import annotations

import asyncio

import pytest

from safekeeper import Bounds, CheckpointId, Closed, Conflict, Receipt, SafeKeeper
from safekeeper.aio import AsyncKeeper

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
