"""`hdfs:` past the contract: how few files there are, what is cleaned up, what a process that dies leaves behind."""

import os
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Survives, Unavailable
from safekeeper.backends.hdfs.client import Client, InputStream
from safekeeper.backends.hdfs.errors import Missing
from safekeeper.backends.hdfs.placement import StockPlacement
from safekeeper.backends.hdfs.store import survives_on
from safekeeper.backends.hdfs.writer import HdfsWriter
from safekeeper.testing.peer import Peer
from safekeeper.url import Url

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
LARGE = 8 << 20

pytestmark = pytest.mark.timeout(900)  # the first one starts the cluster, and may have to fetch its jars


def id_of(number):
    return CheckpointId(f"group{number % 3}", b"%d" % number)


def put(store, number, value):
    return store.write(Batch({id_of(number): value}))


def delete(store, *numbers):
    batch = Batch()
    for number in numbers:
        batch.delete(id_of(number))
    store.write(batch)


def read(store, *numbers):
    return store.read([id_of(number) for number in numbers])


@pytest.fixture
def files(hdfs, hdfs_url):
    """Lists what is in a folder of the store, as the NameNode knows it."""
    with closing(Client(f"hdfs://{hdfs.name_node.address}", {})) as client:
        yield lambda folder: client.listing(f"{Url.parse(hdfs_url).path}/{folder}") or []


@pytest.fixture
def client(hdfs):
    with closing(Client(f"hdfs://{hdfs.name_node.address}", {})) as client:
        yield client


@contextmanager
def two_processes_of_one(url):
    """Two stores at *url* in this process that share nothing, as if each were in a process of its own."""
    join = "&" if "?" in url else "?"
    with safekeeper.open(f"{url}{join}workers=3") as one, safekeeper.open(f"{url}{join}workers=4") as other:
        yield one, other


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_thousand_ids_make_one_file(hdfs_url, files):
    with safekeeper.open(hdfs_url) as store:
        for number in range(20):
            store.write(Batch({id_of(n): b"%d" % n for n in range(number * 50, number * 50 + 50)}))
        assert [status.is_open for status in files("segments")] == [True]
        assert store.read([id_of(n) for n in range(1000)]) == [b"%d" % n for n in range(1000)]
    assert [status.is_open for status in files("segments")] == [False]
    assert files("chunks") == files("compaction") == files("clock") == []


def test_two_hundred_threads_share_one_file_and_few_syncs(hdfs, hdfs_url, files):
    with safekeeper.open(hdfs_url) as store:
        put(store, 0, b"first")
        threads = [threading.Thread(target=put, args=[store, n, b"%d" % n]) for n in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(files("segments")) == 1
        assert read(store, *range(200)) == [b"%d" % n for n in range(200)]


def test_a_segment_that_is_full_is_followed_by_another(hdfs_url, files):
    with safekeeper.open(f"{hdfs_url}?segment=1M") as store:
        for number in range(8):
            put(store, number, bytes([number]) * 300_000)
        assert len(files("segments")) == 3
        assert sum(status.is_open for status in files("segments")) == 1
    with safekeeper.open(hdfs_url) as store:
        assert read(store, *range(8)) == [bytes([number]) * 300_000 for number in range(8)]


def test_a_large_value_is_in_chunks_of_one_block_and_gone_when_it_is_replaced(hdfs_url, files):
    value = os.urandom(LARGE * 2 + 1)
    with safekeeper.open(f"{hdfs_url}?chunk=8M") as store:
        put(store, 1, value)
        put(store, 2, value[:LARGE])
        assert sorted(status.length for status in files("chunks")) == [1, LARGE, LARGE, LARGE]
        assert sum(status.length for status in files("segments")) < 10_000
        with safekeeper.open(hdfs_url) as other:
            assert read(other, 1, 2) == [value, value[:LARGE]]
        put(store, 1, b"small")
        delete(store, 2)
        assert read(store, 1, 2) == [b"small", None]
    assert files("chunks") == []


# --- creating ---------------------------------------------------------------------------------------------------------

TOKEN, OTHER_TOKEN = b"0123456789abcdef", b"another token..."
A = CheckpointId("g", b"a")


def gone(store, id=A):
    batch = Batch()
    batch.delete(id)
    store.write(batch)


@pytest.mark.parametrize("size", (10, LARGE + 1), ids=("small", "large"))
def test_what_was_created_is_a_segment_until_it_is_old_and_its_token_stays(hdfs_url, files, size):
    value = b"v" * size
    with two_processes_of_one(f"{hdfs_url}?orphans-after=60") as (one, other):
        assert one.create(A, value, TOKEN)
        assert not other.create(A, b"theirs", OTHER_TOKEN)
        assert files("creating") == []
        put(one, 1, b"beside")
        one.compact()
        created = [status.name for status in files("segments") if status.name.startswith("created-")]
        assert len(created) == 1
        assert one._shared.store.index.count() == 2
    with safekeeper.open(f"{hdfs_url}?orphans-after=1") as store:
        time.sleep(1)
        put(store, 2, b"")
        store.compact()
        assert not [status.name for status in files("segments") if status.name.startswith("created-")]
        assert store.create(A, b"", TOKEN)
        assert not store.create(A, b"", OTHER_TOKEN)
        assert store.read([A]) == [value]
        assert scanned(store.scan("g")) == {b"a": value}
        gone(store)
        store.compact()
        assert store.read([A]) == [None]
        assert files("chunks") == []


def test_of_two_who_go_by_the_same_listing_one_creates(hdfs_url, files):
    with two_processes_of_one(hdfs_url) as (one, other):
        store = one._shared.store
        real, created = store.client.rename, []

        def rename(old, new):
            store.client.rename = real
            created.append(other.create(A, b"theirs", OTHER_TOKEN))
            real(old, new)

        store.client.rename = rename
        assert not one.create(A, b"mine", TOKEN)
        assert created == [True]
        assert one.read([A]) == [b"theirs"]
        assert files("creating") == []


@pytest.mark.parametrize("steps", ("w", "wd", "cd", "cdc", "cw", "cwd", "wdc"))
def test_whatever_happens_while_an_id_is_created_is_seen_alike_by_all(hdfs_url, steps):
    """Between the listing and the rename another process writes, deletes and creates it."""
    with two_processes_of_one(hdfs_url) as (one, other):
        store = one._shared.store
        real = store.client.rename

        def rename(old, new):
            store.client.rename = real
            for step in steps:
                if step == "c":
                    assert other.create(A, b"theirs", OTHER_TOKEN)
                elif step == "w":
                    other.write(Batch({A: b"written"}))
                else:
                    gone(other)
            real(old, new)

        store.client.rename = rename
        created = one.create(A, b"mine", TOKEN)
        expected = {"w": b"written", "c": b"theirs", "d": b"mine"}[steps[-1]]
        assert created == (expected == b"mine")
        with safekeeper.open(f"{hdfs_url}?workers=6") as third:
            for handle in (one, other, third):
                assert handle.read([A]) == [expected]
            gone(third)
            third.compact()
            for handle in (one, other, third):
                assert handle.read([A]) == [None]


@pytest.mark.parametrize("happened", (False, True))
def test_a_create_that_got_no_answer_is_told_the_same_when_it_asks_again(hdfs_url, files, happened):
    with two_processes_of_one(hdfs_url) as (one, other):
        store = one._shared.store
        real = store.client.rename

        def rename(old, new):
            if happened:
                real(old, new)
            raise Unavailable("cut")

        store.client.rename = rename
        with pytest.raises(Unavailable, match="cut"):
            one.create(A, b"mine", TOKEN)
        store.client.rename = real
        assert other.create(A, b"theirs", OTHER_TOKEN) != happened
        assert one.create(A, b"mine", TOKEN) == happened
        assert other.read([A]) == [b"mine" if happened else b"theirs"]


def test_a_tombstone_stays_while_something_may_still_be_created_behind_it(hdfs_url, files):
    with two_processes_of_one(hdfs_url) as (one, other):
        store = one._shared.store
        real, late = store.client.rename, []

        def rename(old, new):
            late.append((old, new))
            raise Unavailable("late")

        store.client.rename = rename
        with pytest.raises(Unavailable, match="late"):
            one.create(A, b"mine", TOKEN)
        store.client.rename = real
        other.write(Batch({A: b"written", CheckpointId("g", b"b"): b""}))
        gone(other)
        other.compact()
        other.compact()
        real(*late[0])
        assert other.read([A]) == one.read([A]) == [None]


# --- compaction -------------------------------------------------------------------------------------------------------


def test_compaction_gives_back_what_was_replaced_or_deleted(hdfs_url, files):
    with safekeeper.open(f"{hdfs_url}?segment=1M") as store:
        for turn in range(3):
            for number in range(6):
                put(store, number, bytes([turn * 6 + number]) * 250_000)
        delete(store, 4, 5)
        done = store.compact()
        assert 1_000_000 < done.bytes_after < 1_010_000
        assert len(files("segments")) == 1
        assert read(store, *range(6)) == [bytes([12 + number]) * 250_000 for number in range(4)] + [None, None]
        assert store.compact().bytes_after == done.bytes_after
    with safekeeper.open(hdfs_url) as store:
        assert read(store, *range(6)) == [bytes([12 + number]) * 250_000 for number in range(4)] + [None, None]
        assert store.stats().ids == 4


def test_a_store_that_was_emptied_has_no_files(hdfs_url, files):
    with safekeeper.open(hdfs_url) as store:
        put(store, 1, b"value")
        delete(store, 1)
        store.compact()
        assert files("segments") == []
        assert read(store, 1) == [None]
        put(store, 1, b"again")
        assert read(store, 1) == [b"again"]


def test_processes_that_write_little_do_not_leave_ever_more_files(hdfs_url, files):
    for number in range(14):
        with safekeeper.open(hdfs_url) as store:
            put(store, number, b"%d" % number)
    assert len(files("segments")) <= 9
    with safekeeper.open(hdfs_url) as store:
        assert read(store, *range(14)) == [b"%d" % number for number in range(14)]


def scanned(pages):
    return dict(pair for page in pages for pair in page)


def test_a_scan_goes_on_after_a_compaction_has_moved_what_it_was_to_read(hdfs_url, monkeypatch):
    monkeypatch.setattr("safekeeper.backends.hdfs.store._PAGE_RECORDS", 20)
    ids = [CheckpointId("g", b"%03d" % n) for n in range(60)]
    with two_processes_of_one(hdfs_url) as (one, other):
        for id in ids:
            one.write(Batch({id: id.key}))
        pages = other.scan("g")
        found = scanned([next(pages)])
        gone = Batch({ids[59]: b"new"})
        for id in ids[40:59]:
            gone.delete(id)
        one.write(gone)
        one.compact()
        assert other.read([ids[59]]) == [b"new"]  # it has learned that the old segment is gone
        found |= scanned(pages)
    assert found == {id.key: id.key for id in ids[:40]} | {ids[59].key: b"new"}


def test_a_scan_reads_large_values_too_and_few_pieces(hdfs_url, monkeypatch):
    reads = []
    real = InputStream.read
    values = {b"%d" % n: b"%d" % n * 100 for n in range(2000)} | {b"large": bytes(LARGE + 1), b"": b"x" * LARGE}
    with safekeeper.open(hdfs_url) as store:
        for start in range(0, 2000, 500):
            some = list(values.items())[start : start + 500]
            store.write(Batch({CheckpointId("g", key): value for key, value in some}))
        store.write(Batch({CheckpointId("g", key): values[key] for key in (b"large", b"")}))
        monkeypatch.setattr(InputStream, "read", lambda *arguments: (reads.append(1), real(*arguments))[1])
        assert scanned(store.scan("g")) == values
    assert len(reads) <= 10


def test_readers_elsewhere_find_what_a_compaction_moved(hdfs_url):
    with two_processes_of_one(hdfs_url) as (one, other):
        for number in range(10):
            put(one, number, b"%d" % number)
        assert read(other, *range(10)) == [b"%d" % number for number in range(10)]
        put(one, 0, b"newer")
        listing = other.keys("group1")
        seen = {next(listing)}
        one.compact()
        assert read(other, *range(10)) == [b"newer"] + [b"%d" % number for number in range(1, 10)]
        assert {*seen, *listing} == {b"1", b"4", b"7"}


def test_a_deleted_id_stays_deleted_where_an_older_value_could_come_back(hdfs_url, files):
    """The tombstone is in a segment that is compacted, the value in one that another process has open."""
    with two_processes_of_one(hdfs_url) as (one, other):
        put(other, 1, b"old")
        delete(one, 1)
        one.compact()
        assert len(files("segments")) == 2
        assert read(one, 1) == read(other, 1) == [None]
        put(other, 2, b"value")
        with safekeeper.open(f"{hdfs_url}?workers=5") as third:
            assert read(third, 1, 2) == [None, b"value"]


def test_a_deleted_id_stays_deleted_where_an_older_value_is_in_a_segment_that_stays(hdfs_url, files):
    with safekeeper.open(f"{hdfs_url}?segment=1M&compact-dead=0.95") as store:
        put(store, 1, b"old")
        for number in range(2, 6):
            put(store, number, bytes(900_000))  # each fills its segment, so the old value is in one that is alive
        delete(store, 1)
        delete(store, 5)
        store.compact()
        assert read(store, *range(1, 6)) == [None, *[bytes(900_000)] * 3, None]
    with safekeeper.open(hdfs_url) as store:
        assert read(store, *range(1, 6)) == [None, *[bytes(900_000)] * 3, None]


def test_one_process_compacts_at_a_time(hdfs_url, files, client):
    root = Url.parse(hdfs_url).path
    with safekeeper.open(hdfs_url) as store:
        put(store, 1, b"old")
        put(store, 1, b"new")
        with closing(client.create(f"{root}/compaction/0-other", replication=1, block_size=1 << 20)):
            store.compact()
            assert [status.name for status in files("compaction")] == ["0-other"]
            before = files("segments")
        store.compact()  # now it is complete but was never renamed: its process was held up or has died
        assert files("compaction") == []
        assert files("segments") != before
        with pytest.raises(Missing):
            client.rename(f"{root}/compaction/0-other", f"{root}/segments/0-other")
        assert read(store, 1) == [b"new"]


def test_a_compaction_that_dies_before_it_removes_the_old_segments_loses_nothing(hdfs_url, files, client):
    with two_processes_of_one(hdfs_url) as (one, other):
        for number in range(5):
            put(one, number, b"old")
            put(one, number, b"%d" % number)
        delete(one, 4)
        shared = one._shared
        writer, compactor = shared.writing()
        writer.seal()
        path = shared.store.path("compaction", "dies")
        out = client.create(path, replication=1, block_size=1 << 20)
        compactor._copy(list(shared.store.segments.values()), out, path)
        assert len(files("segments")) == 2
        assert read(other, *range(5)) == [b"0", b"1", b"2", b"3", None]
        other.compact()
        assert len(files("segments")) == 1
        assert read(one, *range(5)) == read(other, *range(5)) == [b"0", b"1", b"2", b"3", None]


def test_chunks_of_a_value_that_never_became_whole_are_swept_when_they_are_old(hdfs_url, files, client):
    root = Url.parse(hdfs_url).path
    with safekeeper.open(f"{hdfs_url}?orphans-after=1000") as store:
        put(store, 1, bytes(LARGE))
        client.create(f"{root}/chunks/dead-0001-0000", replication=1, block_size=1 << 20).close()
        store.compact()
        assert len(files("chunks")) == 2
    with safekeeper.open(f"{hdfs_url}?orphans-after=0.001") as store:
        store.compact()
        assert len(files("chunks")) == 1
        assert read(store, 1) == [bytes(LARGE)]


# --- writers that die -------------------------------------------------------------------------------------------------


def test_what_a_killed_writer_acknowledged_is_read_at_once_and_after_its_lease_was_recovered(hdfs_url, files, client):
    with Peer(hdfs_url) as peer:
        for number in range(10):
            peer.write(Batch({id_of(number): b"%d" % number}))
        peer._process.kill()
        peer._process.wait()
    (segment,) = files("segments")
    assert segment.is_open
    expected = [b"%d" % number for number in range(10)]
    with safekeeper.open(hdfs_url) as store:
        assert read(store, *range(10)) == expected
        path = f"{Url.parse(hdfs_url).path}/segments/{segment.name}"
        while not client.recover_lease(path):
            threading.Event().wait(0.1)
        assert read(store, *range(10)) == expected
        with safekeeper.open(f"{hdfs_url}?workers=3") as other:
            assert read(other, *range(10)) == expected
        store.compact()
        assert read(store, *range(10)) == expected


def test_a_segment_that_was_taken_away_costs_nothing_that_was_acknowledged(hdfs_url, files, client):
    """Somebody has the lease recovered under a writer that is alive: it goes on in a new segment."""
    with safekeeper.open(hdfs_url) as store:
        put(store, 1, b"before")
        (segment,) = files("segments")
        path = f"{Url.parse(hdfs_url).path}/segments/{segment.name}"
        while not client.recover_lease(path):
            threading.Event().wait(0.1)
        put(store, 2, b"after")
        assert read(store, 1, 2) == [b"before", b"after"]
        assert len(files("segments")) == 2
        with safekeeper.open(f"{hdfs_url}?workers=3") as other:
            assert read(other, 1, 2) == [b"before", b"after"]


def test_a_segment_that_was_created_though_the_answer_was_lost_does_not_stop_its_writer(hdfs_url, files, monkeypatch):
    create = Client.create

    def create_without_an_answer(*rest, **how):
        monkeypatch.setattr(Client, "create", create)
        create(*rest, **how)
        raise Unavailable("no answer")

    with safekeeper.open(hdfs_url) as store:
        monkeypatch.setattr(Client, "create", create_without_an_answer)
        with pytest.raises(Unavailable, match="no answer"):
            put(store, 1, b"lost")
        put(store, 1, b"value")
        assert read(store, 1) == [b"value"]
        assert len(files("segments")) == 2


def test_a_live_writer_does_not_notice_that_it_is_looked_after(hdfs_url, files, client):
    with safekeeper.open(hdfs_url) as store:
        put(store, 1, b"one")
        (segment,) = files("segments")
        client.nudge(f"{Url.parse(hdfs_url).path}/segments/{segment.name}")
        put(store, 2, b"two")
        assert len(files("segments")) == 1
        client.nudge(f"{Url.parse(hdfs_url).path}/segments/no-such-file")
        assert len(files("segments")) == 1


def test_damage_is_found_and_said_where(hdfs_url, files, client):
    with safekeeper.open(hdfs_url) as store:
        put(store, 1, b"value")
    (segment,) = files("segments")
    path = f"{Url.parse(hdfs_url).path}/segments/{segment.name}"
    with closing(client.open(path)) as stream:
        data = stream.read(0, stream.length)
    for offset in range(0, len(data), 19):
        client.delete(path)
        out = client.create(path, replication=1, block_size=1 << 20)
        out.write(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        out.close()
        found = value_or_damage(hdfs_url)
        assert found == b"value" or segment.name in found, f"a flipped bit at {offset} changed the value or hid it"


def value_or_damage(url):
    try:
        with safekeeper.open(url) as store:
            return read(store, 1)[0]
    except safekeeper.Corruption as error:
        return str(error)


def test_a_data_node_that_was_started_again_does_not_hide_what_a_killed_writer_acknowledged(hdfs, hdfs_url, client):
    """It shows nothing of the block that it was writing, until HDFS takes the file from its writer."""
    (path,), expected = leave_open(hdfs_url, client)
    node = next(node for node in hdfs.data_nodes if node.address in holders(client, path))
    node.kill()
    node.start()
    with safekeeper.open(hdfs_url) as store:
        assert not client.is_closed(path)
        assert read(store, *range(10)) == expected


@pytest.mark.crash
@pytest.mark.skipif(not LONG, reason="HDFS waits a minute before it takes a file; SAFEKEEPER_TEST_LEVEL=long runs it")
def test_when_everybody_was_killed_what_was_acknowledged_can_be_read_again_after_a_minute(hdfs, hdfs_url, client):
    (path,), expected = leave_open(hdfs_url, client)
    nodes = [node for node in hdfs.data_nodes if node.address in holders(client, path)]
    for node in [hdfs.name_node, *nodes]:
        node.kill()
    hdfs.name_node.start()
    for node in nodes:
        node.start()
    began, found = time.monotonic(), None
    with safekeeper.open(hdfs_url) as store:
        while found is None:
            assert time.monotonic() < began + 240, "nobody has the file taken from its writer"
            with suppress(Unavailable):
                found = read(store, *range(10))
            time.sleep(1)
    assert found == expected


def leave_open(url, client):
    """Have a process write something and kill it: the segments, and what is in them."""
    with Peer(url) as peer:
        for number in range(10):
            peer.write(Batch({id_of(number): b"%d" % number}))
        peer._process.kill()
        peer._process.wait()
    folder = f"{Url.parse(url).path}/segments"
    found = [f"{folder}/{status.name}" for status in client.listing(folder) if status.is_open]
    return found, [b"%d" % number for number in range(10)]


def holders(client, path):
    """The DataNodes that have the last block of a file."""
    stream = client._fs.open(client._path(path))
    *_, block = stream.getAllBlocks()
    return {str(node.getXferAddr()) for node in block.getLocations()}


def test_a_segment_begun_and_sealed_while_others_are_looked_at_is_not_taken_for_gone(hdfs_url, monkeypatch):
    with safekeeper.open(hdfs_url) as store:
        put(store, 1, b"old")
        shared = store._shared.store
        look, (writer, _) = shared.look, store._shared.writing()
        writer.seal()

        def look_and_be_slow():
            listing = look()
            monkeypatch.setattr(shared, "look", look)
            put(store, 1, b"new")
            writer.seal()
            return listing

        monkeypatch.setattr(shared, "look", look_and_be_slow)
        assert read(store, 1) == [b"new"]


def test_a_segment_that_cannot_be_read_hides_nothing_of_the_others(hdfs_url, files, monkeypatch):
    for number in range(4):
        with safekeeper.open(hdfs_url) as store:
            put(store, number, b"%d" % number)
    for segment in files("segments"):
        with safekeeper.open(hdfs_url) as store, monkeypatch.context() as patch:
            client = store._shared.store.client
            is_away = lambda path, name=segment.name, **_: path.endswith(name)  # noqa: E731
            patch.setattr(client, "open", raising(Unavailable("away for once"), client.open, is_away))
            with pytest.raises(Unavailable, match="away for once"):
                read(store, 0)
            assert read(store, *range(4)) == [b"%d" % number for number in range(4)]


def test_a_segment_that_cannot_be_read_to_its_end_is_read_anew(hdfs_url, monkeypatch):
    values = [bytes([number]) * 3_000_000 for number in range(5)]  # more than is read at once
    with two_processes_of_one(hdfs_url) as (one, other):
        for number, value in enumerate(values):
            put(one, number, value)
        third = iter([False, False, True])
        patched = raising(Unavailable("away for once"), InputStream.read, lambda *_: next(third, False))
        monkeypatch.setattr(InputStream, "read", patched)
        with pytest.raises(Unavailable, match="away for once"):
            read(other, 0)
        assert read(other, *range(5)) == values


def raising(error, function, when):
    """*function*, which raises *error* the first time that *when* says so of its arguments."""
    errors = [error]

    def call(*arguments, **named):
        if errors and when(*arguments, **named):
            raise errors.pop()
        return function(*arguments, **named)

    return call


# --- order between processes ------------------------------------------------------------------------------------------


def test_a_later_write_wins_though_the_one_before_it_ran_ahead_of_the_clock(hdfs_url):
    """One process takes the NameNode's clock to be up to 90 ms ahead; being alone, it did not wait for that to pass."""
    with two_processes_of_one(hdfs_url) as (one, other):
        put(one, 0, b"first")
        other._shared.writing()[0].clock.next()  # reading it takes a while, which would hide what this is about
        clock = one._shared.writing()[0].clock
        clock._bounds = replace(clock._bounds, high=clock._bounds.high + 90_000)
        assert read(one, 0) == [b"first"]  # so that it has just seen that it is alone
        put(other, 0, b"here I am")
        for turn in range(5):
            put(one, 1, b"ahead")
            put(other, 1, b"%d" % turn)
            assert read(other, 1) == [b"%d" % turn]
        assert read(one, 1) == [b"4"]


def test_a_later_write_wins_though_the_one_before_it_ran_ahead_of_the_clock_and_then_left(hdfs_url, monkeypatch):
    """As above, but who comes next finds nobody there."""
    monkeypatch.setattr("safekeeper.backends.hdfs.writer._MOST_UNCERTAIN", 10_000_000)
    monkeypatch.setattr("safekeeper.backends.hdfs.writer._ALONE", 60_000_000)
    with safekeeper.open(f"{hdfs_url}?workers=3") as other:
        other._shared.writing()[0].clock.next()  # reading it takes a while, which would hide what this is about
        with safekeeper.open(hdfs_url) as one:
            put(one, 0, b"first")
            clock = one._shared.writing()[0].clock
            clock._bounds = replace(clock._bounds, high=clock._bounds.high + 900_000)
            assert read(one, 0) == [b"first"]  # so that it has just seen that it is alone
            put(one, 1, b"ahead")
        put(other, 1, b"later")
        assert read(other, 1) == [b"later"]


def test_a_writer_that_is_alone_does_not_wait_for_the_clock_and_one_that_is_not_does(hdfs_url, monkeypatch):
    with two_processes_of_one(hdfs_url) as (one, other):
        put(one, 0, b"first")
        waited = []
        monkeypatch.setattr(one._shared.writing()[0].clock, "settle", waited.append)
        with monkeypatch.context() as on_a_slow_machine:
            on_a_slow_machine.setattr("safekeeper.backends.hdfs.writer._ALONE", 60_000_000)
            assert read(one, 0) == [b"first"]  # so that it has just seen that it is alone
            put(one, 1, b"value")
            assert waited == []
        put(other, 1, b"other")
        for _ in range(3):
            put(one, 1, b"value")
        assert len(waited) == 3


# --- on disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ("hsync", "hflush"))
def test_all_that_a_block_holds_is_on_disk_when_it_ends_if_that_is_declared(hdfs_url, monkeypatch, sync):
    """A sync is about the last block of a file: those before it, and their places in folders, need one of their own."""
    asked = []
    create = Client.create

    def create_and_tell(*rest, to_disk=False, **how):
        stream = create(*rest, to_disk=to_disk, **how)
        asked.append(to_disk)
        return stream

    monkeypatch.setattr(Client, "create", create_and_tell)
    with safekeeper.open(f"{hdfs_url}?sync={sync}") as store:
        put(store, 1, b"old")
        put(store, 1, b"new")
        put(store, 2, bytes(LARGE))
        store.compact()
    assert len(asked) >= 3  # a segment, a chunk, a compaction
    assert set(asked) == {sync == "hsync"}


def test_a_batch_is_in_one_block_however_large(hdfs_url, files, client):
    with safekeeper.open(f"{hdfs_url}?segment=1M") as store:
        put(store, 0, b"first")
        store.write(Batch({id_of(number): bytes(500_000) for number in range(1, 9)}))
        large = max(files("segments"), key=lambda status: status.length)
        stream = client._fs.open(client._path(f"{Url.parse(hdfs_url).path}/segments/{large.name}"))
        assert len(stream.getAllBlocks()) == 1


# --- what is declared -------------------------------------------------------------------------------------------------

PROCESS, OS, POWER, HOST = Survives.PROCESS, Survives.OS, Survives.POWER, Survives.HOST


@pytest.mark.parametrize(
    ("replication", "sync", "available", "survives"),
    (
        (1, "hsync", False, PROCESS | OS | POWER),
        (3, "hsync", False, PROCESS | OS | POWER),
        (3, "hsync", True, PROCESS | OS | POWER | HOST),
        (1, "hsync", True, PROCESS | OS | POWER),
        (1, "hflush", True, PROCESS),
        (3, "hflush", False, PROCESS | OS),
        (3, "hflush", True, PROCESS | OS | HOST),
    ),
)
def test_what_survives_is_read_off_the_replicas_and_the_sync(replication, sync, available, survives):
    assert survives_on(replication, sync, available) == survives


def test_what_may_lie_in_memory_survives_no_crash_of_its_host(hdfs_url, client):
    """With the storage policy LAZY_PERSIST a DataNode answers a sync before it has a disk. It may be set later."""
    root = Url.parse(hdfs_url).path
    with safekeeper.open(hdfs_url) as store:
        assert put(store, 1, b"value").survives == store.survives == PROCESS | OS | POWER
        client._fs.setStoragePolicy(client._path(root), "LAZY_PERSIST")
        assert put(store, 2, bytes(LARGE)).survives == store.survives == PROCESS
    with safekeeper.open(f"{hdfs_url}?assert=power") as store:
        assert put(store, 1, b"value").survives == store.survives == PROCESS | POWER
        client._fs.setStoragePolicy(client._path(root), "HOT")
        assert put(store, 2, bytes(LARGE)).survives == PROCESS | POWER  # the open segment stays where it is
    with safekeeper.open(hdfs_url) as store:
        assert put(store, 1, b"value").survives == store.survives == PROCESS | OS | POWER


def test_replication_and_sync_are_what_the_url_says(hdfs_url, files, client):
    with safekeeper.open(f"{hdfs_url}?replication=1&sync=hflush") as store:
        assert store.survives == PROCESS
        put(store, 1, b"value")
        put(store, 2, bytes(LARGE))
        assert read(store, 1, 2) == [b"value", bytes(LARGE)]
        for folder in ("segments", "chunks"):
            (status,) = files(folder)
            path = f"{Url.parse(hdfs_url).path}/{folder}/{status.name}"
            assert client._dfs.getFileInfo(path).getReplication() == 1
    with safekeeper.open(hdfs_url) as store:
        assert store.survives == PROCESS | OS | POWER  # three replicas, but one NameNode


def test_a_write_that_too_few_data_nodes_have_is_not_acknowledged_and_harms_nobody(hdfs_url, files):
    with safekeeper.open(f"{hdfs_url}?replication=1") as store:
        put(store, 1, b"value")
        strict = HdfsWriter(store._shared.store, StockPlacement(), 2, lambda: None)
        for value in (b"small", bytes(LARGE)):
            with pytest.raises(Unavailable, match="only 1 DataNode has it: start another one"):
                strict.write(Batch({id_of(2): value}))
        strict.close()
        assert read(store, 1) == [b"value"]
        assert read(store, 2)[0] in (None, b"small")
        put(store, 2, b"newer")
        assert read(store, 2) == [b"newer"]
        assert files("chunks") == []


def test_a_store_closed_under_a_writer_raises_closed_or_unavailable(hdfs_url):
    with safekeeper.open(hdfs_url) as store:
        put(store, 1, b"value")
        writer, _ = store._shared.writing()
    with pytest.raises((safekeeper.Closed, Unavailable)):
        writer.write(Batch({id_of(1): b"late"}))
