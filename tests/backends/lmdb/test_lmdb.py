"""What is LMDB's own: the map that grows, the environment that is shared, the setting that belongs to the store."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import lmdb
import pytest
import xxhash

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Corruption, Survives, Unavailable
from safekeeper.backends.lmdb.environment import _made_with
from safekeeper.columns import Column, Columns
from safekeeper.testing.peer import Peer

A = CheckpointId("g", b"a")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def url(root):
    return f"lmdb://{root}"


@pytest.fixture
def store(url):
    with safekeeper.open(url) as store:
        yield store


def test_the_map_grows_until_a_batch_fits(url):
    big = CheckpointId("g", b"big")
    with safekeeper.open(f"{url}?map-size=64K") as store:
        for id, size in ((A, 10), (big, 5 << 20), (big, 20 << 20)):
            store.write(Batch({id: bytes(size)}))
        assert store.read([A, big]) == [bytes(10), bytes(20 << 20)]


def test_the_map_grows_while_others_read(url):
    ids = [CheckpointId("g", b"%d" % n) for n in range(8)]
    with safekeeper.open(f"{url}?map-size=64K") as store:
        store.write(Batch({A: b"kept"}))
        done = threading.Event()
        seen = set()

        def read():
            while not done.wait(0.001):
                seen.update(store.read([A]))
                list(store.keys("g"))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            for id in ids:
                store.write(Batch({id: bytes(1_000_000)}))
        finally:
            done.set()
            for reader in readers:
                reader.join()
        assert seen == {b"kept"}
        assert set(store.keys("g")) == {A.key, *(id.key for id in ids)}


def test_a_map_that_another_process_has_enlarged_is_followed(url):
    with safekeeper.open(f"{url}?map-size=64K") as store, Peer(f"{url}?map-size=64K") as peer:
        store.write(Batch({A: b"small"}))
        peer.write(Batch({A: bytes(8 << 20)}))
        assert store.read([A]) == [bytes(8 << 20)]
        peer.write(Batch({CheckpointId("g", b"b"): bytes(30 << 20)}))
        store.write(Batch({A: b"small again"}))
        assert peer.read([A]) == [b"small again"]


READERS = """
import lmdb, sys, time
environment = lmdb.open(sys.argv[1], readonly=True)
transactions = [environment.begin() for _ in range(int(sys.argv[2]))]
transactions[0].get(b"g\\0a")
print("reading", flush=True)
time.sleep(600)
"""


def readers(root, number):
    """A process with so many read transactions that do not end."""
    process = subprocess.Popen([sys.executable, "-c", READERS, root, str(number)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"reading\n"
    return process


def test_a_reader_that_was_killed_does_not_make_the_store_grow(url, root):
    with safekeeper.open(f"{url}?map-size=4M") as store:
        store.write(Batch({A: bytes(100_000)}))
        with readers(root, 1) as process:
            process.kill()
        for _ in range(200):
            store.write(Batch({A: os.urandom(100_000)}))
        assert (root / "data.mdb").stat().st_size <= 4 << 20


def test_readers_that_were_killed_do_not_keep_their_places(store, root):
    store.write(Batch({A: b"1"}))
    with readers(root, 1024) as process:
        with pytest.raises(Unavailable, match="1024 reads are going on in all processes: try again"):
            store.read([A])
        process.kill()
    assert store.read([A]) == [b"1"]


def test_names_at_the_limit_and_beyond_it_stay_apart(store, url):
    keys = [b"k" * n for n in (0, 1, 508, 509, 510, 511, 32768)]
    keys += [key[:-1] + b"\1" for key in keys[1:]]
    ids = [CheckpointId("g", key) for key in keys] + [CheckpointId("g" * 255, key) for key in keys]
    store.write(Batch({id: str(id).encode() + b"%d" % len(id.key) for id in ids}))
    with safekeeper.open(url) as other:
        assert other.read(ids) == [str(id).encode() + b"%d" % len(id.key) for id in ids]
        assert sorted(other.keys("g")) == sorted(other.keys("g" * 255)) == sorted(keys)
        assert list(other.groups()) == ["g", "g" * 255]


def test_the_same_folder_by_another_path_is_the_same_store(store, root, tmp_path):
    store.write(Batch({A: b"1"}))
    (tmp_path / "link").symlink_to(root)
    with safekeeper.open(f"lmdb://{tmp_path}/link") as other:
        other.write(Batch({A: b"2"}))
        assert store.read([A]) == [b"2"]


def test_a_folder_that_was_removed_and_made_again_is_a_new_store(store, url, root):
    store.write(Batch({A: b"old"}))
    os.rename(root, f"{root}-old")
    with safekeeper.open(url) as new:
        assert new.read([A]) == [None]
        new.write(Batch({A: b"new"}))
        assert (store.read([A]), new.read([A])) == ([b"old"], [b"new"])


def test_parent_and_child_of_a_fork_both_go_on_with_the_store(url):
    """The child opens a handle of its own, while the parent's other threads are in the middle of transactions."""
    program = f"""
import os, threading, warnings, safekeeper
from safekeeper import Batch, CheckpointId
warnings.simplefilter("ignore", DeprecationWarning)
url, end = {url!r}, threading.Event()
def put(store, key, value): store.write(Batch({{CheckpointId("g", key): value}}))
with safekeeper.open(url) as store:
    def work(key):
        n = 0
        while not end.is_set():
            put(store, key, b"%d" % n)
            assert store.read([CheckpointId("g", key)]) == [b"%d" % n]
            n += 1
    put(store, b"parent", b"before")
    threads = [threading.Thread(target=work, args=(b"%d" % n,)) for n in range(2)]
    for thread in threads: thread.start()
    for n in range(10):
        child = os.fork()
        if not child:
            try:
                with safekeeper.open(url) as own:
                    assert own.read([CheckpointId("g", b"parent")]) == [b"before"]
                    put(own, b"child", b"%d" % n)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert store.read([CheckpointId("g", b"child")]) == [b"%d" % n]
    end.set()
    for thread in threads: thread.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_child_that_forks_itself_goes_on_with_the_store(url):
    """A worker of a pre-forking server that has children of its own."""
    program = f"""
import os, warnings, safekeeper
from safekeeper import Batch, CheckpointId
warnings.simplefilter("ignore", DeprecationWarning)
def go_on(depth):
    id = CheckpointId("g", b"%d" % depth)
    with safekeeper.open({url!r}) as store:
        store.write(Batch({{id: b"before"}}))
        if depth:
            child = os.fork()
            if not child:
                try:
                    go_on(depth - 1)
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        assert store.read([id]) == [b"before"]
        store.write(Batch({{id: b"after"}}))
go_on(3)
"""
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as parent:
        try:
            assert parent.wait(60) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
    with safekeeper.open(url) as store:
        assert store.read([CheckpointId("g", b"%d" % depth) for depth in range(4)]) == [b"after"] * 4


def test_sync_belongs_to_the_store(url, root):
    with safekeeper.open(f"{url}?sync=none") as store:
        assert store.survives == Survives.PROCESS
        assert store.write(Batch({A: b"1"})).survives == Survives.PROCESS
        with safekeeper.open(url) as other:
            assert other.survives == Survives.PROCESS
        with pytest.raises(BadUrl, match="was made with sync=none"):
            safekeeper.open(f"{url}?sync=always")
    with safekeeper.open(url) as store:
        assert store.survives == Survives.PROCESS
        assert store.stats().details["sync"] == "none"
        assert not lmdb_flags(store)["sync"]
    with pytest.raises(BadUrl, match="was made with sync=none"):
        safekeeper.open(f"{url}?sync=always")


def test_a_handle_that_was_opened_before_the_store_was_made_learns_its_setting(url):
    with safekeeper.open(f"{url}?assert=host") as store, Peer(f"{url}?sync=none") as peer:
        assert Survives.POWER in store.survives
        peer.write(Batch({A: b"1"}))
        assert store.read([A]) == [b"1"]
        assert store.write(Batch({A: b"2"})).survives == Survives.PROCESS | Survives.HOST


def test_sync_always_syncs(store):
    store.write(Batch({A: b"1"}))
    assert lmdb_flags(store)["sync"]
    assert lmdb_flags(store)["metasync"]


def lmdb_flags(store):
    return store._environment._lmdb.flags()


def test_somebody_elses_lmdb_is_refused_and_left_alone(url, root):
    with lmdb.open(str(root)) as theirs, theirs.begin(write=True) as transaction:
        transaction.put(b"their", b"data")
    with pytest.raises(BadUrl, match="not safekeeper's"):
        safekeeper.open(url)


def test_a_store_of_another_version_is_refused(url, root):
    with lmdb.open(str(root)) as theirs, theirs.begin(write=True) as transaction:
        transaction.put(b"\0safekeeper", b"2 always")
    with pytest.raises(BadUrl, match="another version"):
        safekeeper.open(url)


def test_what_a_process_left_that_died_making_the_store_is_an_empty_store(store, root):
    root.mkdir()
    (root / "data.mdb").touch()
    assert store.read([A]) == [None]
    assert list(store.groups()) == []
    store.write(Batch({A: b"1"}))
    assert store.read([A]) == [b"1"]


def test_a_file_that_is_no_lmdb_is_corruption(url, root):
    root.mkdir()
    (root / "data.mdb").write_bytes(b"garbage" * 10_000)
    with pytest.raises(Corruption, match=r"data\.mdb: .*no LMDB file"):
        safekeeper.open(url)


@pytest.mark.parametrize("key", (b"short", b"long" * 1000), ids=("plain", "hashed"))
def test_a_flipped_bit_in_a_value_is_corruption(url, root, key):
    id, value = CheckpointId("g", key), os.urandom(20_000)
    with safekeeper.open(url) as store:
        store.write(Batch({A: b"kept", id: value}))
    data = bytearray((root / "data.mdb").read_bytes())
    data[data.index(value[10_000:10_016])] ^= 1
    (root / "data.mdb").write_bytes(data)
    with safekeeper.open(url) as store:
        assert store.read([A]) == [b"kept"]
        with pytest.raises(Corruption, match="does not match"):
            store.read([id])
        assert set(store.keys("g")) == {A.key, key}
        with pytest.raises(Corruption, match=r"g/.* does not match"):
            list(store.scan("g"))


def test_a_scan_goes_on_where_a_page_ended(store):
    # More than one page of names of both forms, and groups that begin alike on both sides.
    ids = [CheckpointId("g", (b"%d" % n) * (500 if n % 5 == 0 else 1)) for n in range(12_000)]
    store.write(Batch({id: id.key[:10] for id in ids}))
    store.write(Batch({CheckpointId("f", b"1"): b"1", CheckpointId("g!", b"1"): b"1", CheckpointId("ga", b"1"): b"1"}))
    scanned = [pair for page in store.scan("g") for pair in page]
    assert len(scanned) == len(ids)
    assert dict(scanned) == {id.key: id.key[:10] for id in ids}


T1, T2 = b"1" * 16, b"2" * 16


def test_tokens_are_no_ids_and_go_with_what_is_written(store, root):
    ids = [CheckpointId("g", b"a"), CheckpointId("g", b"long" * 1000), CheckpointId("h", b"")]
    for id in ids:
        assert store.create(id, b"made", T1)
    assert set(store.groups()) == {"g", "h"}
    assert set(store.keys("g")) == {id.key for id in ids[:2]}
    assert {key for page in store.scan("g") for key, _ in page} == {id.key for id in ids[:2]}
    assert store.stats().ids == 3
    assert entries(store) == 1 + 3 + 3
    batch = Batch({ids[0]: b"made"})  # the same value is a write, too
    batch.delete(ids[1])
    store.write(batch)
    assert entries(store) == 1 + 2 + 1
    assert not store.create(ids[0], b"made", T1)
    assert store.create(ids[2], b"made", T1)
    columns = Columns("h", Column.of([b""]), Column.of([b"made"]))
    store.write(Batch.of_columns(columns))
    assert entries(store) == 1 + 2
    assert not store.create(ids[2], b"made", T1)


def entries(store):
    with store._environment._inside_it() as environment:
        return environment.stat()["entries"]


def test_a_token_does_not_count_for_what_an_older_version_has_written(url, root):
    with safekeeper.open(url) as store:
        assert store.create(A, b"made", T1)
        store.write(Batch({CheckpointId("b", b"a"): b"other"}))
    with lmdb.open(str(root)) as environment, environment.begin(write=True) as transaction:
        rest, name = b"changed", b"g\0a"
        transaction.put(name, xxhash.xxh3_64_digest(rest, xxhash.xxh3_64_intdigest(name)) + rest)
    with safekeeper.open(url) as store:
        assert not store.create(A, b"made", T1)
        assert store.read([A]) == [b"changed"]


def test_a_damaged_token_is_corruption(url, root):
    with safekeeper.open(url) as store:
        assert store.create(A, b"made", T1)
    data = (root / "data.mdb").read_bytes()
    (root / "data.mdb").write_bytes(data.replace(T1, T2))
    with safekeeper.open(url) as store:
        for token in (T1, T2):
            with pytest.raises(Corruption, match="token"):
                store.create(A, b"made", token)
        assert store.read([A]) == [b"made"]


def test_what_is_created_again_is_made_durable_again(store):
    assert store.create(A, b"made", T1)
    before = last_transaction(store)
    assert not store.create(A, b"made", T2)
    assert last_transaction(store) == before
    assert store.create(A, b"made", T1)
    assert last_transaction(store) > before, "whoever was killed may have committed what is not durable yet"


def last_transaction(store):
    with store._environment._inside_it() as environment:
        return environment.info()["last_txnid"]


def test_nobody_else_may_look(store, root):
    store.write(Batch({A: b"1"}))
    assert root.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in root.iterdir()} == {0o600}


def test_stats_count_ids_and_what_they_occupy(store, root):
    assert store.stats().ids == 0
    store.write(Batch({CheckpointId("g", b"%d" % n): bytes(5000) for n in range(100)}))
    assert store.stats().ids == 100
    assert 500_000 < store.stats().bytes_stored <= (root / "data.mdb").stat().st_size


def test_a_store_that_another_process_begins_while_it_is_opened_is_not_taken_for_a_stranger(root, url):
    root.mkdir()
    with Peer(url) as other, lmdb.open(str(root)) as environment:

        class Overtaken:
            """An environment in which the other one writes for the first time after a transaction has ended."""

            reader_check, stat = environment.reader_check, environment.stat

            @contextmanager
            def begin(self):
                with environment.begin() as transaction:
                    yield transaction
                other.write(Batch({A: b"first"}))

        assert _made_with(Overtaken(), root) is None
