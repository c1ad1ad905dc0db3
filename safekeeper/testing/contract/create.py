"""The part of the contract about `create`, for backends that have it.

python -m safekeeper.testing.contract.create URL GROUP SEED     creates ids until it is killed
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import cast

import pytest

import safekeeper
from safekeeper.backend import MAX_VALUE_BYTES, TOKEN_BYTES, Backend, CheckpointId, Scope, SupportsCreate, Survives
from safekeeper.errors import Closed, TooLarge
from safekeeper.testing.contract.base import LONG, Kit, Opener, at_once, delete, get, put
from safekeeper.testing.peer import PATIENCE, start_python


class CreateContract(Kit):
    """What is created is created once, by one."""

    @pytest.fixture
    def creator(self, store: Backend) -> SupportsCreate:
        """The store."""
        if not isinstance(store, SupportsCreate):
            pytest.skip("this backend has no create")
        return store

    def test_only_what_is_absent_is_created(
        self, store: Backend, creator: SupportsCreate, opened: Opener, group: str
    ) -> None:
        for key, value in ((b"key", b"first"), (b"", b""), (b"k" * 30_000, b"v" * 3_000_000)):
            id, mine = CheckpointId(group, key), _token()
            assert creator.create(id, value, mine)
            assert not creator.create(id, b"second", _token())
            for handle in (store, opened()):
                assert get(handle, id) == value
        assert set(store.keys(group)) == {b"key", b"", b"k" * 30_000}

    def test_the_same_token_again_is_success(
        self, store: Backend, creator: SupportsCreate, opened: Opener, group: str
    ) -> None:
        id, mine = CheckpointId(group, b"key"), _token()
        for handle in (creator, creator, cast("SupportsCreate", opened())):
            assert handle.create(id, b"first", mine)
        assert not creator.create(id, b"first", _token())
        assert get(store, id) == b"first"

    def test_what_was_written_is_not_created(self, store: Backend, creator: SupportsCreate, group: str) -> None:
        id, mine = CheckpointId(group, b"key"), _token()
        put(store, id, b"written")
        assert not creator.create(id, b"created", mine)
        delete(store, id)
        assert creator.create(id, b"created", mine)
        put(store, id, b"written again")
        assert not creator.create(id, b"created", mine), "a token was remembered after its id was written"
        assert get(store, id) == b"written again"
        delete(store, id)
        assert creator.create(id, b"last", _token())
        assert get(store, id) == b"last"

    def test_of_several_at_once_one_creates(self, creator: SupportsCreate, opened: Opener, group: str) -> None:
        handles = [cast("SupportsCreate", opened()) for _ in range(4)]
        for turn in range(8):
            id, won = CheckpointId(group, b"%d" % turn), list[bytes]()

            def create(id: CheckpointId, won: list[bytes], number: int) -> None:
                value = b"%d" % number
                if handles[number].create(id, value, _token()):
                    won.append(value)

            at_once(*(partial(create, id, won, number) for number in range(4)))
            assert len(won) == 1, f"{len(won)} callers were told that they created an id"
            assert get(cast("Backend", creator), id) == won[0]

    def test_processes_that_are_killed_create_each_id_once(self, url: str, store: Backend, group: str) -> None:
        if not isinstance(store, SupportsCreate):
            pytest.skip("this backend has no create")
        if store.scope < Scope.HOST or Survives.PROCESS not in store.survives:
            pytest.skip("nothing is left of a killed process")
        random = Random(group)  # noqa: S311
        for turn in range(15 if LONG else 2):
            name = f"{group}-{turn}"
            with ThreadPoolExecutor(2) as pool:
                runs = [pool.submit(_run_and_kill, url, name, seed, random.randrange(2, 30)) for seed in (1, 2)]
            reports = [run.result() for run in runs]
            for number in range(max(map(len, reports)) + 1):
                id = CheckpointId(name, b"%d" % number)
                # Whoever was killed before it got the answer asks again, and is told the same.
                won = [store.create(id, b"%d" % seed, _token_of(seed, number)) for seed in (1, 2)]
                assert sum(won) == 1, f"{id} was created by {sum(won)} of two"
                assert get(store, id) == b"%d" % (won.index(True) + 1)
                for wins, report in zip(won, reports, strict=True):
                    if number < len(report):
                        assert (report[number] == ord("+")) == wins, f"who created {id} was told something else before"

    def test_what_cannot_be_stored_is_refused(self, store: Backend, creator: SupportsCreate, group: str) -> None:
        id = CheckpointId(group, b"key")
        for token in (b"", b"t" * (TOKEN_BYTES - 1), b"t" * (TOKEN_BYTES + 1)):
            with pytest.raises(ValueError, match="token"):
                creator.create(id, b"value", token)
        with pytest.raises(TooLarge):
            creator.create(id, bytes(MAX_VALUE_BYTES + 1), _token())
        assert get(store, id) is None

    def test_a_closed_store_creates_nothing(self, store: Backend, creator: SupportsCreate, group: str) -> None:
        store.close()
        with pytest.raises(Closed):
            creator.create(CheckpointId(group, b"key"), b"", _token())


def _token() -> bytes:
    return secrets.token_bytes(TOKEN_BYTES)


def _token_of(seed: int, number: int) -> bytes:
    return b"%08d%08d" % (seed, number)


def _run_and_kill(url: str, group: str, seed: int, wanted: int) -> bytes:
    """Let a process create ids, and kill it after about *wanted* of them: what it was told, `+` or `-`."""
    with start_python(__name__, url, group, str(seed), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            reports = b""
            while len(reports) < wanted:
                if not select.select([process.stdout], [], [], PATIENCE)[0]:
                    raise TimeoutError(f"nothing was created within {PATIENCE:g} s")
                if not (arrived := os.read(process.stdout.fileno(), 1 << 16)):
                    raise AssertionError("the creating process ended by itself: its standard error says why")
                reports += arrived
        finally:
            process.kill()
        return reports + process.stdout.read()


if __name__ == "__main__":
    with safekeeper.open(sys.argv[1]) as opened_:
        me, at = int(sys.argv[3]), 0
        while True:
            created = cast("SupportsCreate", opened_).create(
                CheckpointId(sys.argv[2], b"%d" % at), b"%d" % me, _token_of(me, at)
            )
            os.write(sys.stdout.fileno(), b"+" if created else b"-")
            at += 1
