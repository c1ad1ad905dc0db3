"""Commits while the batch runs: what is full leaves for the store before the commit, and is deleted after an abort."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from safekeeper.testing.entry_point import write_entry_points

SMALL = {"valueBytes": 64 << 10, "codec": "none"}


def test_full_parts_are_in_the_store_before_the_commit(world: Any, items: Any, eventually: Any) -> None:
    provider = world.provider(**SMALL)
    store = provider.open(0, None).putMany(10_000, 200, 7)
    eventually(lambda: len(world.keys("part")) > 20)
    provider.provider().doCleanupMaintenance()
    assert world.keys() == []
    store.put(1, 1, "last")
    expected = items(store.items())
    store.commit()
    assert len(world.keys()) == 1
    assert items(world.provider().open(1, None).items()) == expected


def test_the_parts_of_an_aborted_store_are_deleted_and_a_retry_commits(world: Any, items: Any, eventually: Any) -> None:
    provider = world.provider(**SMALL)
    provider.open(0, None).put(1, 1, "kept").commit()
    store = provider.open(1, None).putMany(10_000, 200, 7)
    eventually(lambda: world.keys("part") != [])
    store.abort()
    eventually(lambda: world.keys("part") == [])
    retry = provider.open(1, None)
    assert items(retry.items()) == {"1:1": "kept"}
    retry.putMany(10_000, 200, 8)
    expected = items(retry.items())
    retry.commit()
    assert items(world.provider().open(2, None).items()) == expected


def test_parts_that_a_dead_process_left_go_with_their_version(world: Any) -> None:
    world.settings["spark.sql.streaming.minBatchesToRetain"] = "1"
    provider = world.provider(**SMALL)
    provider.open(0, None).putMany(2000, 200, 0).commit()
    left = world.keys("part")[0]
    id = left.name.split("_")[2]
    orphan = Path(shutil.copy(left, left.with_name(left.name.replace(id, str(uuid.uuid4())))))
    for version in range(1, 5):
        provider.open(version, None).putMany(2000, 200, version).commit()
        provider.provider().doCleanupMaintenance()
    assert not orphan.exists()
    world.provider().open(5, None)


@pytest.fixture
def odd_store(tmp_path: Path, world: Any) -> Callable[..., Any]:
    """Providers on a store that keeps parts waiting while `hold` exists, and fails after heads while `fail` exists.

    While `twice` exists every key is listed twice, and while `short` exists no commit's last part is listed.
    While `together` exists no part is read before parts of four commits were asked for: `asked` has them.
    """
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "odd.py").write_text(
        "import os, time\n"
        "from safekeeper.backends.file import FileBackend\n"
        "from safekeeper.errors import Unavailable\n"
        "class OddBackend(FileBackend):\n"
        "    def write(self, batch):\n"
        "        keys = [id.key for id, _ in batch.items()]\n"
        f"        while any(key.startswith(b'part') for key in keys) and os.path.exists('{folder}/hold'):\n"
        "            time.sleep(0.01)\n"
        "        receipt = super().write(batch)\n"
        f"        if any(key.startswith(b'commit') for key in keys) and os.path.exists('{folder}/fail'):\n"
        "            raise Unavailable('it was written, but nobody heard')\n"
        "        return receipt\n"
        "    def read(self, ids):\n"
        f"        if os.path.exists('{folder}/together'):\n"
        "            ids = list(ids)\n"
        "            asked = [id for id in ids if id.key.startswith(b'part')]\n"
        f"            with open('{folder}/asked', 'a') as file:\n"
        "                file.write(''.join(f'{id.group} {id.key.decode()}\\n' for id in asked))\n"
        "            for _ in range(12000 if asked else 0):\n"
        "                if self.commits_asked_for() >= 4:\n"
        "                    break\n"
        "                time.sleep(0.01)\n"
        "        return super().read(ids)\n"
        "    def keys(self, group):\n"
        "        keys = sorted(super().keys(group))\n"
        f"        if os.path.exists('{folder}/short'):\n"
        "            last = dict((key.split(b'_')[2], key) for key in keys if key.startswith(b'part')).values()\n"
        "            keys = [key for key in keys if key not in last]\n"
        f"        return iter(keys * 2 if os.path.exists('{folder}/twice') else keys)\n"
        "    def commits_asked_for(self):\n"
        f"        with open('{folder}/asked') as file:\n"
        "            return len({line.split('_')[1] + line.split()[0] for line in file})\n"
    )
    write_entry_points(folder, {"odd": "odd:OddBackend"})
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return lambda **settings: world.provider(url=f"odd://{tmp_path}/store", python=script, **settings)


def test_a_store_that_is_slower_than_the_batch_is_waited_for(
    odd_store: Any, tmp_path: Path, items: Any, eventually: Any
) -> None:
    hold = tmp_path / "odd" / "hold"
    hold.touch()
    provider = odd_store(valueBytes=16 << 10, codec="none")
    store = provider.open(0, None).putMany(2000, 200, 7)
    expected = items(store.items())
    committing = provider.commitInBackground(store)
    eventually(lambda: provider.someThreadIsIn("commits.CommitWriter", "await"))
    assert not store.hasCommitted()
    hold.unlink()
    committing.get()
    assert items(provider.open(1, None).items()) == expected


def test_a_head_that_was_perhaps_written_keeps_its_parts(odd_store: Any, tmp_path: Path, items: Any) -> None:
    """In checkpoint format 1 it is the latest commit of its version, so whoever loads that reads it."""
    fail = tmp_path / "odd" / "fail"
    fail.touch()
    provider = odd_store(retryMs=2000, **SMALL)
    store = provider.open(0, None).putMany(2000, 200, 7)
    expected = items(store.items())
    with pytest.raises(Py4JJavaError, match="nobody heard"):
        store.commit()
    store.abort()
    fail.unlink()
    time.sleep(0.5)  # for a deletion that must not be
    assert items(odd_store().open(1, None).items()) == expected


@pytest.mark.parametrize("listing", ("twice", "short"))
def test_a_listing_with_keys_twice_or_without_new_ones_loses_no_part(
    odd_store: Any, tmp_path: Path, items: Any, listing: str
) -> None:
    """A backend may yield a key twice, and one that was written while it listed or not."""
    (tmp_path / "odd" / listing).touch()
    provider = odd_store(**SMALL)
    for version in range(2):
        provider.open(version, None).putMany(700, 200, version).commit()
    expected = items(provider.open(2, None).items())
    assert items(odd_store().open(2, None).items()) == expected


def test_a_restart_reads_parts_of_several_commits_and_partitions_at_once(
    odd_store: Any, tmp_path: Path, world: Any, items: Any
) -> None:
    """No part comes before those of two commits of both partitions were asked for."""
    partitions = [odd_store(partition=number, **SMALL) for number in (0, 1)]
    for version in range(4):
        for provider in partitions:
            provider.open(version, None).putMany(700, 200, version).commit()
    expected = [items(provider.open(4, None).items()) for provider in partitions]
    (tmp_path / "odd" / "together").touch()
    restarted = [odd_store(partition=number, **SMALL) for number in (0, 1)]
    loading = [provider.openInBackground(4) for provider in restarted]
    assert [items(store.get().items()) for store in loading] == expected
    asked = [line.split() for line in (tmp_path / "odd" / "asked").read_text().splitlines()]
    first = {(group, key.split("_")[1]) for group, key in asked[:8]}
    assert len({group for group, _ in first}) == 2
    assert len(first) >= 4
