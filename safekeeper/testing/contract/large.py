"""Values in parts on this backend: whole for every reader, and whole after a kill."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
from random import Random

import pytest

import safekeeper
from safekeeper import large
from safekeeper.backend import Backend, CheckpointId, Scope, Survives
from safekeeper.testing.contract.base import LONG, Kit, meanwhile
from safekeeper.testing.peer import PATIENCE, start_python

_PART_BYTES = 100_000
_SIZES = (250_000, 50, 100_000, 310_001)


class LargeContract(Kit):
    """What is over the limit of a value is written in parts, the head last (`safekeeper.large`)."""

    def test_a_value_in_parts_comes_back_and_its_old_parts_go(self, store: Backend, group: str) -> None:
        id = CheckpointId(group, b"large")
        for turn in range(3):
            data = _data(turn)
            _write(store, id, turn)
            assert large.read(store, id) == data
            file = large.open_value(store, id)
            assert file is not None
            file.seek(len(data) // 2)
            assert file.read() == data[len(data) // 2 :]
        large.delete(store, id)
        assert large.read(store, id) is None
        assert list(store.keys(large.parts_group(group))) == []

    def test_readers_never_see_a_torn_value_in_parts(self, store: Backend, group: str) -> None:
        id = CheckpointId(group, b"large")
        _write(store, id, 0)
        values = [_data(turn) for turn in range(4)]

        def write() -> None:
            for turn in range(1, 8):
                _write(store, id, turn % 4)

        for _ in meanwhile(write):
            assert large.read(store, id) in values, "a value in parts is torn"

    def test_a_value_in_parts_is_whole_after_kill_9(self, url: str, store: Backend, group: str) -> None:
        if store.scope < Scope.HOST or Survives.PROCESS not in store.survives:
            pytest.skip("nothing is left of a killed process")
        random = Random(group)  # noqa: S311
        id = CheckpointId(group, b"large")
        acknowledged = 0
        for _ in range(20 if LONG else 3):
            acknowledged += _run_and_kill(url, id, acknowledged, random)
            found = large.read(store, id)
            allowed = [_data(acknowledged - 1) if acknowledged else None, _data(acknowledged)]
            assert found in allowed, "it is neither the last acknowledged value nor the next one"
            _write(store, id, acknowledged)
            acknowledged += 1
            large.sweep(store, group)
            assert large.read(store, id) == _data(acknowledged - 1)


def _data(turn: int) -> bytes:
    return Random(turn).randbytes(_SIZES[turn % len(_SIZES)])  # noqa: S311


def _write(store: Backend, id: CheckpointId, turn: int) -> None:
    large.write(store, id, io.BytesIO(_data(turn)), part_bytes=_PART_BYTES)


def _run_and_kill(url: str, id: CheckpointId, turn: int, random: Random) -> int:
    """Let a process write one value after the other, from *turn* on, and kill it; how many it has acknowledged."""
    arguments = (url, id.group, str(turn))
    with start_python(__name__, *arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            reports, wanted = b"", random.randrange(1, 5)
            while len(reports) < wanted:
                if not select.select([process.stdout], [], [], PATIENCE)[0]:
                    raise TimeoutError(f"no write returned within {PATIENCE:g} s")
                if not (arrived := os.read(process.stdout.fileno(), 1 << 16)):
                    raise AssertionError("the writing process ended by itself: its standard error says why")
                reports += arrived
        finally:
            process.send_signal(signal.SIGKILL)
        return len(reports + process.stdout.read())


if __name__ == "__main__":
    with safekeeper.open(sys.argv[1]) as opened:
        at = int(sys.argv[3])
        while True:
            _write(opened, CheckpointId(sys.argv[2], b"large"), at)
            os.write(sys.stdout.fileno(), b".")
            at += 1
