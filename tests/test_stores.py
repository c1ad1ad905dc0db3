import io
import json
import subprocess
import sys

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, large, stores
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing.ids import AWKWARD_GROUPS, AWKWARD_KEYS
from safekeeper.testing.wrappers import Slow

IDS = [CheckpointId("keys", key) for key in AWKWARD_KEYS.values()]
IDS += [CheckpointId(group, b"key") for group in AWKWARD_GROUPS.values()]


def run(*arguments):
    done = subprocess.run([sys.executable, "-m", "safekeeper.cli", "copy", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def contents(url):
    with safekeeper.open(url) as store:
        return dict(stores.read_in_pieces(store, stores.ids_of(store)))


@pytest.fixture
def filled(tmp_path):
    url = f"file://{tmp_path}/from"
    with safekeeper.open(url) as store:
        store.write(Batch({id: str(number).encode() for number, id in enumerate(IDS)}))
    return url


@pytest.mark.parametrize("scheme", ["file", "log", "lmdb", "objects+file"])
def test_every_id_arrives_in_any_store_and_the_source_stays(filled, tmp_path, scheme):
    before = contents(filled)
    target = f"{scheme}://{tmp_path}/to"
    size = sum(map(len, before.values()))
    assert run(filled, target) == (0, "", f"{len(IDS):,} ids copied, {size:,} bytes of values\n")
    assert contents(target) == contents(filled) == before
    assert len(before) == len(IDS)


def test_a_copy_made_again_brings_what_is_new_and_leaves_what_else_is_there(filled, tmp_path):
    target = f"log://{tmp_path}/to"
    run(filled, target)
    with safekeeper.open(filled) as store:
        store.write(Batch({IDS[0]: b"newer"}))
    with safekeeper.open(target) as store:
        store.write(Batch({CheckpointId("of its own", b""): b"1"}))
    run(filled, target)
    assert contents(target) == contents(filled) | {CheckpointId("of its own", b""): b"1"}


def test_some_groups_can_be_copied(filled, tmp_path):
    target = f"file://{tmp_path}/to"
    code, said, _ = run(filled, target, "--group", "keys", "--group", "nothing", "--json")
    assert (code, json.loads(said)["ids"]) == (0, len(AWKWARD_KEYS))
    assert {id.group for id in contents(target)} == {"keys"}


def test_a_target_that_cannot_be_opened_is_one_line(filled, tmp_path):
    assert run(filled, "lgo:///x") == (2, "", run("lgo:///x", filled)[2])
    code, _, said = run(filled, f"file://{tmp_path}/from/under/a/file?x=1")
    assert (code, said.count("\n")) == (2, 1)


class Watched(Slow):
    """Notes how much each read returned."""

    def __init__(self, backend):
        super().__init__(backend)
        self.reads = []

    def read(self, ids):
        values = super().read(ids)
        self.reads.append((len(ids), sum(map(len, values))))
        return values


def test_a_piece_holds_many_small_values_but_few_large_ones():
    large = bytes(4 << 20)
    with safekeeper.open("memory:") as store:
        for number in range(40):
            store.write(Batch({CheckpointId("g", b"%d" % number): large}))
        watched = Watched(store)
        assert len(list(stores.read_in_pieces(watched, stores.ids_of(store)))) == 40
    first, *others = watched.reads
    assert first == (16, 16 * len(large))  # before anything is known of them
    assert max(size for _, size in others) <= 16 << 20

    with safekeeper.open("memory:") as store:
        store.write(Batch({CheckpointId("g", b"%d" % number): b"small" for number in range(5000)}))
        watched = Watched(store)
        assert len(list(stores.read_in_pieces(watched, stores.ids_of(store)))) == 5000
    assert len(watched.reads) < 15


def test_a_store_that_scans_and_one_that_does_not_give_the_same_values(filled):
    class ScanningTwice(MemoryBackend):
        def scan(self, group):
            yield from [*super().scan(group)] * 2

    with safekeeper.open(filled) as source, ScanningTwice() as twice:
        stores.copy(source, twice)
        found = list(stores.values_of(twice))
        assert len(found) == len(IDS)
        assert dict(found) == dict(stores.values_of(Slow(source))) == dict(stores.values_of(source))
        assert {id for id, _ in stores.values_of(twice, ["keys"])} == {id for id in IDS if id.group == "keys"}


def test_batches_are_bounded_and_none_is_empty():
    puts = [(CheckpointId("g", b"%d" % number), bytes(1 << 20)) for number in range(50)]
    sizes = [batch.nbytes for batch in stores.batches(puts)]
    assert sum(sizes) >= 50 << 20
    assert max(sizes) <= 17 << 20
    assert list(stores.batches([])) == []


def test_a_copy_of_a_group_takes_the_parts_of_its_large_values_along():
    with MemoryBackend() as source, MemoryBackend() as target:
        id = CheckpointId("models", b"weights")
        large.write(source, id, io.BytesIO(b"x" * 95), part_bytes=10)
        stores.copy(source, target, ["models"])
        assert large.read(target, id) == b"x" * 95
