"""`safekeeper prune`: which state goes, which stays, and what is left when it dies half-way."""

import json
import os
import pty
import shutil
import subprocess
import sys
import uuid
import zlib

import pytest
from pyspark.sql import functions as F

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.errors import Unavailable
from safekeeper.integrations.filesystem.layout import FileEntry, VolumePath, now
from safekeeper.integrations.filesystem.volume import FileVolumes
from safekeeper.spark import PREFIX
from safekeeper.spark.prune import LOCATION, Fate, remove, stored_queries
from safekeeper.testing import Faulty


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store"


@pytest.fixture
def checkpoints(tmp_path):
    """The folder that checkpoints are in."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


def put(store, query, location, partitions=2, commits=3):
    """What the provider writes for a query."""
    batch = Batch()
    for partition in range(partitions):
        group = f"spark/{query}/0/{partition}/default"
        if location is not None:
            batch.put(CheckpointId(group, LOCATION), str(location).encode())
        for version in range(commits):
            batch.put(CheckpointId(group, b"commit %d" % version), b"frame")
    store.write(batch)


def make_checkpoint(folder, query):
    folder.mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))


def prune(url, *options, **more):
    command = [sys.executable, "-m", "safekeeper.cli", "prune", url, *options]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)


def groups(url):
    with safekeeper.open(url) as store:
        return {group.split("/")[1] if group.startswith("spark/") else group for group in store.groups()}


def test_only_the_state_of_queries_whose_checkpoint_is_gone_is_removed(url, checkpoints):
    there, gone = str(uuid.uuid4()), str(uuid.uuid4())
    make_checkpoint(checkpoints / "with space", there)
    with safekeeper.open(url) as store:
        put(store, there, f"file:{checkpoints}/with space")
        put(store, gone, f"file:{checkpoints}/gone")
        store.write(Batch({CheckpointId("not Spark's", b"key"): b"", CheckpointId("spark/like", b"key"): b""}))
    done = prune(url, "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"remove {gone}, 8 keys: its checkpoint is gone (file:{checkpoints}/gone)\n"
    assert done.stderr == "the state of 1 queries is removed\n"
    assert groups(url) == {there, "not Spark's", "like"}
    assert prune(url, "--yes").stderr == "nothing to remove\n"


def test_nothing_is_removed_by_a_dry_run_or_when_nobody_can_be_asked(url, checkpoints):
    with safekeeper.open(url) as store:
        put(store, "gone", f"file://{checkpoints}/gone")
    shown = prune(url, "--dry-run")
    asked = prune(url)
    assert (shown.returncode, asked.returncode) == (0, 2)
    assert shown.stdout == asked.stdout != ""
    assert asked.stderr == "safekeeper: say --yes to remove them, or --dry-run to see them only\n"
    assert groups(url) == {"gone"}


@pytest.mark.parametrize(("answer", "left"), (("y", set()), ("n", {"gone"}), ("", {"gone"})))
def test_on_a_terminal_it_asks(answer, left, url, checkpoints):
    with safekeeper.open(url) as store:
        put(store, "gone", f"file:{checkpoints}/gone")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "safekeeper.cli", "prune", url]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.write(ours, f"{answer}\n".encode())
        out, _ = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    assert out.startswith(b"remove gone, 8 keys")
    assert groups(url) == left


def fate(store, **options):
    (found,) = stored_queries(store, **options)
    return found.fate, found.reason


def test_a_folder_that_another_query_has_now_is_gone_for_the_first(checkpoints):
    make_checkpoint(checkpoints / "q", "second")
    with safekeeper.open("memory:") as store:
        put(store, "first", f"file:{checkpoints}/q")
        assert fate(store) == (Fate.GONE, "another query has its checkpoint's folder now")


@pytest.mark.parametrize(("query", "expected"), (("moved", Fate.THERE), ("another", Fate.GONE), (None, Fate.UNKNOWN)))
def test_a_query_that_was_moved_and_has_not_committed_in_all_groups_is_where_it_was_moved_to(
    query, expected, checkpoints
):
    if query:
        make_checkpoint(checkpoints / "new", query)
    else:
        (checkpoints / "new").mkdir()
    with safekeeper.open("memory:") as store:
        put(store, "moved", f"file:{checkpoints}/old", partitions=3)
        store.write(Batch({CheckpointId("spark/moved/0/1/default", LOCATION): f"file:{checkpoints}/new".encode()}))
        (found,) = stored_queries(store)
        assert found.fate is expected
        assert (found.location == f"file:{checkpoints}/new") is (expected is not Fate.GONE)
        assert fate(store, gone=[f"file:{checkpoints}/new"])[0] is Fate.GONE


@pytest.mark.parametrize(
    ("location", "says"),
    (
        (None, "no group tells where its checkpoint is"),
        ("nosuch://host/checkpoint", "cannot be reached"),
        ("file:/no/such/parent/checkpoint", "not even the folder above"),
        ("file:{}/" + 300 * "x", "cannot be reached: [Errno 36] File name too long"),
        ("file:{}/empty", "has no metadata that could be read"),
        ("file:{}/torn", "has no metadata that could be read"),
        ("file:{}/list", "has no metadata that could be read"),
    ),
    ids=(
        "no location",
        "unknown file system",
        "no parent",
        "no answer",
        "no metadata",
        "torn metadata",
        "odd metadata",
    ),
)
def test_what_cannot_be_judged_is_kept_and_named(location, says, url, checkpoints):
    for name, content in {"empty": None, "torn": '{"id": "qu', "list": "[1]"}.items():
        (checkpoints / name).mkdir()
        if content is not None:
            (checkpoints / name / "metadata").write_text(content)
    place = location and location.format(checkpoints)
    with safekeeper.open(url) as store:
        put(store, "query", place)
    done = prune(url, "--yes")
    assert done.stdout.startswith("keep query, ")
    assert says in done.stdout
    assert (place or "unknown") in done.stdout
    assert done.stderr == "nothing to remove\n"
    assert groups(url) == {"query"}


def test_a_checkpoint_on_a_file_system_of_fsspec_is_looked_for(tmp_path):
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/here/there/metadata", b'{"id": "there"}')
    with safekeeper.open("memory:") as store:
        for query in ("there", "gone"):
            put(store, query, f"memory://here/{query}")
        assert {query.id: query.fate for query in stored_queries(store)} == {"there": Fate.THERE, "gone": Fate.GONE}
    files.rm("/here", recursive=True)


def test_the_user_may_say_what_is_gone(url):
    with safekeeper.open(url) as store:
        put(store, "a", "nosuch://host/old/a")
        put(store, "b", "nosuch://host/older")
    assert prune(url, "--yes", "--gone", "nosuch://host/old/").returncode == 0
    assert groups(url) == {"b"}


@pytest.mark.parametrize("deletions", range(4))
@pytest.mark.parametrize("when", ("before", "after"))
def test_a_removal_that_dies_half_way_is_finished_by_the_next(deletions, when, checkpoints):
    """Two partitions are four deletions; what is left after any of them still tells of its checkpoint."""
    with safekeeper.open("memory:") as store:
        put(store, "gone", f"file:{checkpoints}/gone")
        (query,) = stored_queries(store)
        faulty = Faulty(store)
        faulty.fail("write", skip=deletions, when=when)
        with pytest.raises(Unavailable):
            remove(faulty, query)
        for rest in stored_queries(store):
            assert rest.fate is Fate.GONE
            remove(store, rest)
        assert list(store.groups()) == []


def test_more_keys_than_are_deleted_at_once_are_deleted(checkpoints):
    with safekeeper.open("memory:") as store:
        put(store, "gone", f"file:{checkpoints}/gone", commits=2500)
        (query,) = stored_queries(store)
        remove(store, query)
        assert list(store.groups()) == []


def test_what_a_real_query_has_written_is_found_and_removed(ours, runner, events, url):
    def sums(left):
        return left.groupBy("key").agg(F.sum("number"))

    query = runner(sums, {"left": events(1)}, {**ours(), PREFIX + "url": url}, "update")
    query.run(0)
    with safekeeper.open(url) as store:
        assert fate(store) == (Fate.THERE, "its checkpoint is there")
        shutil.rmtree(query.checkpoint)
        (found,) = stored_queries(store)
        assert (found.fate, found.location) == (Fate.GONE, f"file:{query.checkpoint}")
        remove(store, found)
        assert list(store.groups()) == []


def test_json_tells_what_would_go(url, checkpoints):
    with safekeeper.open(url) as store:
        put(store, "gone", f"file:{checkpoints}/gone", partitions=1)
    (found,) = json.loads(prune(url, "--dry-run", "--json").stdout)
    assert found == {
        "id": "gone",
        "location": f"file:{checkpoints}/gone",
        "groups": ["spark/gone/0/0/default"],
        "keys": 4,
        "fate": "gone",
        "reason": "its checkpoint is gone",
    }


def test_a_checkpoint_in_the_same_store_is_looked_for_there(url):
    """As with `configure(..., checkpoints=True)`: nothing else has to be reachable."""
    there, gone, replaced = (str(uuid.uuid4()) for _ in range(3))
    with safekeeper.open(url) as store:
        files = FileVolumes(store)
        for query, name, owner in ((there, "a", there), (gone, "b", None), (replaced, "c", there)):
            put(store, query, f"safekeeper://main/{name}")
            if owner is not None:
                content = json.dumps({"id": owner}).encode()
                entry = FileEntry(False, now(), len(content), content=content, crc=zlib.crc32(content), part_bytes=1)
                files.put({VolumePath("main", (name, "metadata")): entry})
        fates = {query.id: query.fate for query in stored_queries(store)}
    assert fates == {there: Fate.THERE, gone: Fate.GONE, replaced: Fate.GONE}
    assert prune(url, "--yes").returncode == 0
    assert there in groups(url)
    assert not {gone, replaced} & groups(url)


@pytest.mark.parametrize("location", ["safekeeper://main/q", "safekeeper://other/jobs/q"], ids=["volume", "directory"])
def test_a_checkpoint_in_another_store_is_not_taken_for_gone(url, location):
    """`fs.safekeeper.url` and the URL of the state are two settings: here the files are somewhere else."""
    with safekeeper.open(url) as store:
        FileVolumes(store).make_directory(VolumePath("other", ("theirs",)), exist_ok=True)
        put(store, "running", location)
        (query,) = stored_queries(store)
    assert query.fate is Fate.UNKNOWN
    assert prune(url, "--yes").returncode == 0
    assert "running" in groups(url)
