"""A store that any version of the format wrote must open forever."""

import shutil
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Columns
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.manifest import VERSION
from safekeeper.backends.log.options import LogOptions
from safekeeper.testing.peer import Peer

SAMPLES = Path(__file__).parent / "samples"


def write_sample(root: Path) -> None:
    """How a sample was made: records, columns, tombstones, a moved segment, an index file and a tail that is not in it.

    From version 2 on, by two writers: the first one has older values, a deleted id, and one value that nobody has
    replaced. Never run again for a version that exists: the files under `samples/` are what old stores look like.
    """
    with Peer(f"log://{root}?segment=4K") as other, LogBackend(root, LogOptions(segment=4096)) as store:
        other.write(Batch(dict.fromkeys(EXPECTED, b"older")))
        other.write(Batch({CheckpointId("records", b"deleted"): b"older", EMPTY_KEY: EXPECTED[EMPTY_KEY]}))
        store.write(Batch({id: value for id, value in EXPECTED.items() if id.group == "records" and id.key}))
        columns = {id.key: value for id, value in EXPECTED.items() if id.group == "columns"}
        store.write(Batch.of_columns(Columns.of("columns", list(columns), list(columns.values()))))
        store.compact()  # nothing is dead: these two stay where they are
        store.write(Batch({CheckpointId("records", b"deleted"): b"gone", CheckpointId("moved", b"a"): b"old"}))
        store.write(Batch({CheckpointId("moved", b"a"): EXPECTED[CheckpointId("moved", b"a")]}))
        store.compact()
        batch = Batch({CheckpointId("tail", b"\0\xff"): EXPECTED[CheckpointId("tail", b"\0\xff")]})
        batch.delete(CheckpointId("records", b"deleted"))
        store.write(batch)


EMPTY_KEY = CheckpointId("records", b"")
EXPECTED = {
    EMPTY_KEY: b"an empty key",
    CheckpointId("records", b"empty"): b"",
    CheckpointId("records", b"long"): bytes(range(256)) * 2,
    CheckpointId("columns", b"x"): b"first",
    CheckpointId("columns", b"longer key"): b"second value",
    CheckpointId("columns", b"empty"): b"",
    CheckpointId("moved", b"a"): b"new",
    CheckpointId("tail", b"\0\xff"): b"\xc3\xa4",
}


@pytest.mark.parametrize("version", sorted(path.name for path in SAMPLES.iterdir()))
def test_a_store_of_an_old_version_opens_and_can_be_written(version, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(SAMPLES / version, root)
    for indexed in (True, False):
        with LogBackend(root) as store:
            assert {id: store.read([id])[0] for id in EXPECTED} == EXPECTED
            assert {CheckpointId(group, key) for group in store.groups() for key in store.keys(group)} == set(EXPECTED)
            assert (list(store.verify()) == []) == indexed  # a missing index is damage, though it costs nothing
        for index in root.glob("*/*.index"):
            index.unlink()
    new = CheckpointId("records", b"new")
    with LogBackend(root) as store:
        store.write(Batch({new: b"value"}))
    with LogBackend(root) as store:
        assert {id: store.read([id])[0] for id in [*EXPECTED, new]} == {**EXPECTED, new: b"value"}


def test_there_is_a_sample_of_every_version():
    assert {path.name for path in SAMPLES.iterdir()} == {f"version-{number}" for number in range(1, VERSION + 1)}
