"""A store that any version of the format wrote must open forever."""

import shutil
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Columns
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.manifest import VERSION
from safekeeper.backends.log.options import LogOptions
from safekeeper.testing.peer import Peer

from .creating import create

SAMPLES = Path(__file__).parent / "samples"


def write_sample(root: Path) -> None:
    """How a sample was made: records, columns, tombstones, a moved segment, an index file and a tail that is not in it.

    From version 2 on, by two writers: the first one has older values, a deleted id, and one value that nobody has
    replaced. From version 3 on, some ids are created: one in each folder, and one that is moved. Never run again for a
    version that exists: the files under `samples/` are what old stores look like.
    """
    with Peer(f"log://{root}?segment=4K") as other, LogBackend(root, LogOptions(segment=4096)) as store:
        other.write(Batch(dict.fromkeys(EXPECTED, b"older")))
        other.write(deletion_of(EMPTY_KEY))
        other.call(create, EMPTY_KEY, EXPECTED[EMPTY_KEY], TOKEN)
        other.write(Batch({CheckpointId("records", b"deleted"): b"older"}))
        store.write(Batch({id: value for id, value in EXPECTED.items() if id.group == "records" and id.key}))
        columns = {id.key: value for id, value in EXPECTED.items() if id.group == "columns"}
        store.write(Batch.of_columns(Columns.of("columns", list(columns), list(columns.values()))))
        store.compact()  # nothing is dead: these two stay where they are
        store.write(Batch({CheckpointId("records", b"deleted"): b"gone", CheckpointId("moved", b"a"): b"old"}))
        store.write(deletion_of(MOVED))
        store.create(MOVED, EXPECTED[MOVED], TOKEN)
        store.write(Batch({CheckpointId("rubbish", b""): bytes(5000)}))
        store.write(deletion_of(CheckpointId("rubbish", b"")))
        store.compact()
        store.write(deletion_of(TAIL))
        store.create(TAIL, EXPECTED[TAIL], TOKEN)
        store.write(deletion_of(CheckpointId("records", b"deleted")))


def deletion_of(id: CheckpointId) -> Batch:
    batch = Batch()
    batch.delete(id)
    return batch


EMPTY_KEY, MOVED = CheckpointId("records", b""), CheckpointId("moved", b"a")
TAIL = CheckpointId("tail", b"\0\xff")
TOKEN = b"0123456789abcdef"
EXPECTED = {
    EMPTY_KEY: b"an empty key",
    CheckpointId("records", b"empty"): b"",
    CheckpointId("records", b"long"): bytes(range(256)) * 2,
    CheckpointId("columns", b"x"): b"first",
    CheckpointId("columns", b"longer key"): b"second value",
    CheckpointId("columns", b"empty"): b"",
    MOVED: b"new",
    TAIL: b"\xc3\xa4",
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
            created = {EMPTY_KEY, MOVED, TAIL} if version == "version-3" else set()
            assert {id for id in EXPECTED if store.create(id, b"", TOKEN)} == created
            assert not any(store.create(id, b"", bytes(16)) for id in EXPECTED)
        for index in root.glob("*/*.index"):
            index.unlink()
    new = CheckpointId("records", b"new")
    with LogBackend(root) as store:
        store.write(Batch({new: b"value"}))
    with LogBackend(root) as store:
        assert {id: store.read([id])[0] for id in [*EXPECTED, new]} == {**EXPECTED, new: b"value"}


def test_there_is_a_sample_of_every_version():
    assert {path.name for path in SAMPLES.iterdir()} == {f"version-{number}" for number in range(1, VERSION + 1)}
