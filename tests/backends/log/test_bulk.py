"""Many records at once: a scan gives what `keys` and `read` give, in few reads, and finds the same damage."""

import random

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Columns, Corruption
from safekeeper.backends.log import bulk, root
from safekeeper.backends.log.segment import LogSegment
from safekeeper.columns import Column
from safekeeper.testing.peer import Peer

SIZES = (0, 1, 7, 100, 100, 100, 5000, 70_000, 300_000)


def scanned(store, group="group"):
    pairs = [pair for page in store.scan(group) for pair in page]
    assert len(pairs) == len(dict(pairs)), "a key came twice"
    return dict(pairs)


def read(store, group="group"):
    keys = list(store.keys(group))
    return dict(zip(keys, store.read([CheckpointId(group, key) for key in keys]), strict=True))


def some_batches(seed, number, values=SIZES):
    """Batches of puts, of deletes and of columns, of ids that come again and again."""
    dice = random.Random(seed)

    def key():
        return b"%d" % dice.randrange(400) * dice.choice((1, 1, 1, 50))

    for _ in range(number):
        group = dice.choice(("group", "group", "group", "gros", "group2"))
        if dice.random() < 0.3:
            keys = list({key() for _ in range(dice.choice((1, 50, 300)))})
            sizes = [dice.choice((100, *values[:-2])) for _ in keys]
            of_one_size = dice.random() < 0.3
            rows = [dice.randbytes(8 if of_one_size else size) for size in sizes]
            yield Batch.of_columns(Columns(group, Column.of(keys), Column.of(rows)))
        else:
            batch = Batch()
            for _ in range(dice.choice((1, 5, 40))):
                if dice.random() < 0.2:
                    batch.delete(CheckpointId(group, key()))
                else:
                    batch.put(CheckpointId(group, key()), dice.randbytes(dice.choice(values)))
            yield batch


@pytest.mark.parametrize("options", ("sync=always&segment=256K", "sync=none&segment=8M", "sync=interval&segment=1M"))
def test_a_scan_gives_what_keys_and_reads_give(tmp_path, options):
    url = f"log://{tmp_path}/store?{options}"
    for turn in range(3):
        with safekeeper.open(url) as store:
            for batch in some_batches(turn, 25):
                store.write(batch)
            assert {group: scanned(store, group) for group in ("group", "gros", "group2", "none")} == {
                group: read(store, group) for group in ("group", "gros", "group2", "none")
            }
            if turn == 1:
                store.compact()
                assert scanned(store) == read(store)
        with safekeeper.open(url) as store:
            assert scanned(store) == read(store)


@pytest.mark.parametrize("seeds", ("one", "two"))
def test_a_scan_gives_the_newest_of_several_folders(tmp_path, seeds):
    url = f"log://{tmp_path}/store?segment={'256K' if seeds == 'one' else '1G'}"
    with Peer(url) as peer, safekeeper.open(url) as store:
        values = SIZES[:-1]
        for batch, other in zip(some_batches(1, 30, values), some_batches(2, 30, values), strict=True):
            store.write(batch)
            peer.write(other)
        assert len(store._log.root.folders()) == 2
        if seeds == "two":  # as it was before the folders agreed on one; what has no index file does not notice
            store._log.root.folders()[0].state.index.table.seed += 1
        assert scanned(store) == read(store)
        peer.write(Batch({CheckpointId("alone", b"1"): b"one"}))
        assert scanned(store, "alone") == {b"1": b"one"}
        if seeds == "one":
            store.compact()
            assert scanned(store) == read(store)


@pytest.mark.parametrize("sync", ("always", "none"))
@pytest.mark.parametrize("listing", ("scan", "keys"))
def test_a_scan_of_more_segments_than_may_be_open_goes_on_while_they_go(tmp_path, monkeypatch, sync, listing):
    monkeypatch.setattr(root, "most_open", lambda: 4)
    ids = [CheckpointId("group", b"%d" % n) for n in range(300)]
    with safekeeper.open(f"log://{tmp_path}/store?segment=4K&sync={sync}") as store:
        for turn in (b"1", b"2"):
            for id in ids:
                store.write(Batch({id: turn * 200}))
        found = store.scan("group") if listing == "scan" else store.keys("group")
        seen = [next(found)]
        for id in ids[:250]:
            store.write(Batch({id: b"3" * 200}))
        store.compact()
        seen += found
        if listing == "keys":
            assert {*seen} == {id.key for id in ids}
        else:
            values = dict(pair for page in seen for pair in page)
            assert values.keys() == {id.key for id in ids}
            assert {*values.values()} <= {b"2" * 200, b"3" * 200}


def test_a_scan_makes_few_reads(tmp_path, monkeypatch):
    ids = [CheckpointId("group", b"%d" % n) for n in range(20_000)]
    with safekeeper.open(f"log://{tmp_path}/store") as store:
        for start in range(0, len(ids), 1000):
            store.write(Batch({id: id.key * 20 for id in ids[start : start + 1000]}))
        store.write(
            Batch.of_columns(Columns("rows", Column.of([id.key for id in ids]), Column.of([b"1" * 500] * 20_000)))
        )
        reads = []
        original = LogSegment.read
        monkeypatch.setattr(LogSegment, "read", lambda *args: reads.append(args) or original(*args))
        assert scanned(store) == {id.key: id.key * 20 for id in ids}
        assert len(reads) < 50
        reads.clear()
        assert scanned(store, "rows") == {id.key: b"1" * 500 for id in ids}
        assert len(reads) < 50


@pytest.mark.parametrize("kind", ("records", "rows"))
@pytest.mark.parametrize("what", ("key", "value"))
def test_a_scan_finds_a_flipped_bit_and_says_where(tmp_path, kind, what):
    keys = [b"key-%04d" % n for n in range(3000)]
    values = [b"value-%04d-" % n * 9 for n in range(3000)]
    with safekeeper.open(f"log://{tmp_path}/store") as store:
        if kind == "rows":
            store.write(Batch.of_columns(Columns("group", Column.of(keys), Column.of(values))))
        else:
            store.write(Batch({CheckpointId("group", key): value for key, value in zip(keys, values, strict=True)}))
        assert len(scanned(store)) == 3000
        (path,) = (tmp_path / "store").glob("*/*.segment")
        data = path.read_bytes()
        at = data.index(b"key-2000" if what == "key" else b"value-2000-")
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        seen = []
        with pytest.raises(Corruption, match=rf"{path.name}: offset \d+: a checksum does not match"):
            seen += store.scan("group")
        with pytest.raises(Corruption):
            store.read([CheckpointId("group", b"key-2000")])


@pytest.mark.parametrize("options", ("segment=256K", "segment=8M"))
def test_keys_are_the_same_one_by_one_and_many_at_once(tmp_path, monkeypatch, options):
    url, wanted = f"log://{tmp_path}/store?{options}", {}
    with safekeeper.open(url) as store:
        for batch in some_batches(7, 60):
            store.write(batch)
            for id, value in batch.items():
                if id.group == "group":
                    wanted[id.key] = value is not None
    wanted = {key for key, there in wanted.items() if there}
    for near in (bulk._NEAR, -1, 1 << 40):
        monkeypatch.setattr(bulk, "_NEAR", near)
        with safekeeper.open(url) as store:
            keys = list(store.keys("group"))
            assert len(keys) == len(wanted)
            assert set(keys) == wanted


@pytest.mark.parametrize("size", (200, 30_000))
def test_a_listing_reads_no_more_than_it_must(tmp_path, monkeypatch, size):
    ids = [CheckpointId("group", b"%d" % n) for n in range(3_000 if size == 200 else 300)]
    url = f"log://{tmp_path}/store"
    with safekeeper.open(url) as store:
        for start in range(0, len(ids), 100):
            store.write(Batch({id: bytes(size) for id in ids[start : start + 100]}))
    with safekeeper.open(url) as store:
        store.read([])  # which loads the index
        reads = []
        original = LogSegment.read
        monkeypatch.setattr(LogSegment, "read", lambda *args: reads.append(args[1]) or original(*args))
        assert set(store.keys("group")) == {id.key for id in ids}
        assert len(reads) < 20 or sum(reads) < 4096 * len(ids), "few reads, or small ones"


def test_a_listing_finds_a_flipped_bit_and_says_where(tmp_path):
    url = f"log://{tmp_path}/store"
    with safekeeper.open(url) as store:
        store.write(Batch({CheckpointId("group", b"key-%04d" % n): b"value" for n in range(3000)}))
    (path,) = (tmp_path / "store").glob("*/*.segment")
    with safekeeper.open(url) as store:
        assert len(list(store.keys("group"))) == 3000
        data = path.read_bytes()
        with open(path, "r+b") as file:
            file.seek(data.index(b"key-2000"))
            file.write(b"q")
        with pytest.raises(Corruption, match=rf"{path.name}: offset \d+: a checksum does not match"):
            list(store.keys("group"))
