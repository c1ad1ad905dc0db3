"""What the command line knows of files in a store."""

import json
import subprocess
import sys

import pytest

from safekeeper import Batch
from safekeeper.integrations.filesystem import layout


def command(*arguments):
    line = [sys.executable, "-m", "safekeeper.cli", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store"


def test_ls_shows_a_directory_with_sizes_and_times(url, make_fs):
    make_fs(url=url).pipe({"main/q/offsets/0": b"v1", "main/q/metadata": b"{}"})
    listed = command("ls", url, "safekeeper://main/q")
    assert [line.split()[::2] for line in listed.stdout.splitlines()] == [
        ["2", "safekeeper://main/q/metadata"],
        ["0", "safekeeper://main/q/offsets/"],
    ]
    (one,) = json.loads(command("ls", "--json", url, "safekeeper://main/q/metadata").stdout)
    assert (one["name"], one["size"]) == ("safekeeper://main/q/metadata", 2)
    absent = command("ls", url, "safekeeper://main/nothing")
    assert (absent.returncode, absent.stderr) == (1, "safekeeper: there is no safekeeper://main/nothing\n")


def test_verify_finds_files_that_are_not_what_was_written(url, make_fs):
    fs = make_fs(url=url, part_bytes=10_000)
    fs.pipe({"main/whole": b"x" * 25_000, "main/short": b"y" * 25_000, "main/other": b"z" * 25_000})
    assert command("verify", url).returncode == 0
    short, other = (fs.files.get(layout.VolumePath("main", (name,))).write for name in ("short", "other"))
    batch = Batch({layout.part_id("main", other, 1): b"Z" * 10_000})
    batch.delete(layout.part_id("main", short, 2))
    fs.store.write(batch)
    found = command("verify", url)
    assert found.returncode == 1
    assert sorted(line.partition(" ")[0] for line in found.stdout.splitlines()) == [
        "safekeeper://main/other:",
        "safekeeper://main/short:",
    ]


@pytest.mark.parametrize("files", [{"main/f": b"x"}, {}], ids=["beside a file", "alone"])
def test_prune_removes_what_dead_writers_left(url, make_fs, files):
    fs = make_fs(url=url)
    old = (layout.now() - 2 * 24 * 3600 * 1000).to_bytes(6) + bytes(10)
    young = layout.new_write()
    fs.store.write(Batch({layout.part_id("main", write, 0): b"x" for write in (old, young)}))
    fs.pipe(files)
    pruned = command("prune", "--yes", url)
    assert "1 files that were never finished are removed" in pruned.stderr
    assert list(fs.store.keys(layout.content_group("main"))) == [layout.part_id("main", young, 0).key]
