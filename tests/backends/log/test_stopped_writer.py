"""A writer that stops in any step of a write, is taken for dead, and goes on when another has its folder."""

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from safekeeper import Batch, CheckpointId, Conflict
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.options import LogOptions
from safekeeper.testing.peer import PATIENCE, Peer

from .inside import steps_of_a_write, write_and_stop
from .stopping import lose_the_lock_of, wait_until_stopped

A, B = CheckpointId("group", b"a"), CheckpointId("group", b"b")
OPTIONS = LogOptions(segment=8192)

# Within a segment, and with a new one begun: the block does not fit into what is left of the old one.
SIZES = {"append": 10, "rotate": 5000}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_writer_stopped_in_any_step_and_taken_over_gets_conflict_and_has_lost_nothing(tmp_path, size):
    root, url = tmp_path / "store", f"log://{tmp_path}/store?segment=8K"
    with (
        Peer(url) as peer,
        LogBackend(root, OPTIONS) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        peer.write(Batch({A: b"first"}))
        steps = [*peer.call(steps_of_a_write, {A: bytes(size), B: bytes(size)}), "answer"]
        assert {"choose", "take", "write_synced", "fenced", "publish"} <= {*steps}
        assert ("replace" in steps) == (size == SIZES["rotate"])
        for number, step in enumerate(steps):
            acknowledged, late = b"acknowledged %d" % number, bytes([number]) * size
            peer.write(Batch({A: acknowledged}))
            writing = pool.submit(peer.call, write_and_stop, {A: late, B: late}, number)
            wait_until_stopped(peer._process.pid)
            folder = lose_the_lock_of(peer._process.pid, root)
            store.compact()  # takes over what has no writer
            assert not folder.exists()
            seen = store.read([A, B])
            assert seen in ([acknowledged, seen[1]], [late, late]), f"before {step}"
            check_resumed(peer, store, writing, step, seen)
        with Peer(url) as fresh:
            assert fresh.read([A, B]) == [b"again", b"ours"]
        assert list(store.verify()) == []


def check_resumed(peer: Peer, store: LogBackend, writing: Future[None], step: str, seen: list[bytes | None]) -> None:
    store.write(Batch({B: b"ours"}))
    os.kill(peer._process.pid, signal.SIGCONT)
    error = writing.exception(PATIENCE)
    if error is None:
        assert seen[0] == seen[1], f"before {step}: acknowledged, and whoever took over had not seen it"
        with pytest.raises(Conflict):
            peer.write(Batch({A: b"refused"}))
    else:
        assert isinstance(error, Conflict)
        assert "was taken over" in str(error)
        assert step != "answer"
    expected = [seen[0], b"ours"]
    assert store.read([A, B]) == expected, f"before {step}: what was written late is seen after all"
    assert peer.read([A, B]) == expected
    peer.write(Batch({A: b"again"}))  # it claims another folder
    assert store.read([A]) == [b"again"]
