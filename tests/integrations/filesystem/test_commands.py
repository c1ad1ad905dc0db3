"""What the command line knows of files in a store."""

import json
import subprocess
import sys

import pytest

from safekeeper import Batch, CheckpointId, Unavailable, cli
from safekeeper.integrations.filesystem import layout
from safekeeper.testing import Faulty


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


def state_of(query, location):
    """What our state store keeps of a query, whose last key says where its checkpoint is."""
    group = f"spark/{query}/0/0/default"
    return {CheckpointId(group, b"commit 1"): b"frame", CheckpointId(group, b"location"): location.encode()}


@pytest.fixture
def two_checkpoints(url, make_fs):
    """`main/a` and `main/ab`, with large and small files and the state of both."""
    fs = make_fs(url=url, part_bytes=10_000)
    for name in ("a", "ab"):
        fs.pipe({f"main/{name}/metadata": b"{}", f"main/{name}/state/0/1.zip": name.encode() * 25_000})
        fs.store.write(Batch(state_of(f"query-of-{name}", f"safekeeper://main/{name}")))
    return fs


def test_rm_removes_a_checkpoint_with_its_state_and_no_other(url, two_checkpoints):
    fs = two_checkpoints
    refused = command("rm", url, "safekeeper://main/a")
    assert (refused.returncode, "say --recursive" in refused.stderr) == (2, True)
    assert command("rm", "-r", url, "safekeeper://main/a").returncode == 0
    assert fs.find("main") == ["main/ab/metadata", "main/ab/state/0/1.zip"]
    assert {group for group in fs.store.groups() if group.startswith("spark/")} == {"spark/query-of-ab/0/0/default"}
    assert len(list(fs.store.keys(layout.content_group("main")))) == 5
    assert command("rm", url, "safekeeper://main/ab/metadata").returncode == 0
    assert fs.find("main") == ["main/ab/state/0/1.zip"]
    absent = command("rm", "-r", url, "safekeeper://main/a")
    assert (absent.returncode, absent.stderr) == (1, "safekeeper: there is no safekeeper://main/a\n")
    assert command("rm", url, "safekeeper://main/ab", "key").returncode == 2


def test_a_query_that_was_moved_and_not_all_of_it_knows_keeps_its_state(url, two_checkpoints, tmp_path):
    """Where the checkpoint is stands in each group, and changes there with the first commit at the new place."""
    fs = two_checkpoints
    moved, untold = "spark/query-of-a/0/1/default", "spark/query-of-a/0/2/default"
    told = {CheckpointId(moved, b"location"): b"safekeeper://main/b", CheckpointId(moved, b"commit 1"): b"frame"}
    fs.store.write(Batch({**told, CheckpointId(untold, b"commit 1"): b"frame"}))
    fs.pipe({"main/b/metadata": b"{}"})
    before = set(fs.store.groups())
    new = f"file://{tmp_path}/new"
    for line in (("rm", "-r", url), ("copy", url, new, "--files")):
        for place, other in (("a", "b"), ("b", "a")):
            refused = command(*line, f"safekeeper://main/{place}")
            assert (refused.returncode, refused.stderr) == (
                2,
                f"safekeeper: a part of the state of query query-of-a belongs to safekeeper://main/{other}, not to "
                f"safekeeper://main/{place}: run a batch of the query where it is now, with movedCheckpoint=adopt, and "
                "try again\n",
            )
    assert set(fs.store.groups()) == before
    first = CheckpointId("spark/query-of-a/0/0/default", b"location")
    fs.store.write(Batch({first: b"safekeeper://main/b"}))
    assert command("rm", "-r", url, "safekeeper://main/a").returncode == 0
    assert {group for group in fs.store.groups() if group.startswith("spark/")} >= {first.group, moved, untold}
    assert command("rm", "-r", url, "safekeeper://main/b").returncode == 0
    assert {group for group in fs.store.groups() if group.startswith("spark/")} == {"spark/query-of-ab/0/0/default"}


def test_rm_of_a_checkpoint_whose_copy_has_not_been_started_is_refused(url, two_checkpoints):
    fs = two_checkpoints
    fs.pipe({f"{place}/metadata": b'{"id": "query-of-a"}' for place in ("main/a", "main/a/inside", "other/x/copy")})
    refused = command("rm", "-r", url, "safekeeper://main/a")
    assert (refused.returncode, refused.stderr) == (
        2,
        "safekeeper: safekeeper://other/x/copy is a checkpoint of query query-of-a, too, whose state would go with "
        "safekeeper://main/a: remove that one first, or start it with movedCheckpoint=adopt\n",
    )
    assert "main/a/metadata" in fs.find("main")
    assert command("rm", "-r", url, "safekeeper://other/x").returncode == 0
    assert "spark/query-of-a/0/0/default" in set(fs.store.groups())
    assert command("rm", "-r", url, "safekeeper://main/a").returncode == 0
    assert "spark/query-of-a/0/0/default" not in set(fs.store.groups())


@pytest.mark.parametrize("when", ("before", "after"))
def test_rm_that_dies_half_way_is_finished_by_the_next(make_fs, when):
    died = 0
    for writes in range(12):
        fs = make_fs(url="memory:", part_bytes=10_000)
        fs.pipe({"main/a/metadata": b"{}", "main/a/state/0/1.zip": b"x" * 25_000})
        fs.store.write(Batch(state_of("query", "safekeeper://main/a")))
        faulty = Faulty(fs.store)
        faulty.fail("write", skip=writes, when=when)
        try:
            cli._remove_files(faulty, "safekeeper://main/a", recursive=True)
        except Unavailable:
            died += 1
            if fs.exists("main/a"):
                cli._remove_files(fs.store, "safekeeper://main/a", recursive=True)
        assert set(fs.store.groups()) <= {layout.content_group("main")}, "parts that no file names go with prune"
    assert died > 5


def test_rm_of_ids_says_what_is_missing(url, two_checkpoints):
    nothing = command("rm", url, "group")
    assert (nothing.returncode, nothing.stderr) == (2, "safekeeper: which keys of group? name them\n")
    assert command("rm", "-r", url, "group", "key").returncode == 2


def test_copy_takes_one_checkpoint_with_its_state_and_what_it_is_in(url, two_checkpoints, make_fs, tmp_path):
    new = f"log://{tmp_path}/new"
    for _ in range(2):  # it may be made again
        copied = command("copy", "--files", "safekeeper://main/a", url, new)
        assert copied.returncode == 0, copied.stderr
    fs = make_fs(url=new)
    assert fs.find("main") == ["main/a/metadata", "main/a/state/0/1.zip"]
    assert fs.ls("main/a/state", detail=False) == ["main/a/state/0"]
    assert fs.cat("main/a/state/0/1.zip") == b"a" * 25_000
    assert {group for group in fs.store.groups() if group.startswith("spark/")} == {"spark/query-of-a/0/0/default"}
    fs.close()
    assert command("verify", new).returncode == 0
    for wrong in (("--files", "group"), ("--files", "safekeeper://main/a", "--group", "g")):
        assert command("copy", *wrong, url, new).returncode == 2
    assert command("copy", "--files", "safekeeper://main/no", url, new).returncode == 1
