"""What is the object backend's own: which object counts, what a writer that dies leaves behind, what a URL may say."""

import itertools
import os
import time

import fsspec
import pyarrow.fs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Corruption, Scope, SupportsCreate, Survives
from safekeeper.backends.objects.backend import ObjectsBackend
from safekeeper.backends.objects.errors import errors_as_unavailable
from safekeeper.backends.objects.store import FolderStore, LocalStore, store_of

A, B = CheckpointId("g", b"a"), CheckpointId("g", b"b")
DAY = 24 * 3600 * 10**9


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def url(root):
    return f"objects+file://{root}"


@pytest.fixture
def store(url):
    with safekeeper.open(url) as store:
        yield store


def put(store, value, id=A):
    store.write(Batch({id: value}))


def delete(store, id=A):
    batch = Batch()
    batch.delete(id)
    store.write(batch)


def files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


class Died(BaseException):
    """The process ends here."""


class Mortal(LocalStore):
    """A local folder whose process dies before its *steps*-th change."""

    def __init__(self, root, steps):
        super().__init__(fsspec.filesystem("file"), str(root))
        self.steps = steps

    def _step(self):
        if not self.steps:
            raise Died
        self.steps -= 1

    def put(self, path, pieces):
        self._step()
        super().put(path, pieces)

    def remove(self, path):
        self._step()
        super().remove(path)

    def prune(self, folder):
        self._step()
        super().prune(folder)


def attempt(root, steps, change):
    """Whether *change* ended before the process died."""
    try:
        change(ObjectsBackend(Mortal(root, steps), "here"))
    except Died:
        return False
    return True


@pytest.mark.parametrize("change", (lambda store: put(store, b"new"), delete), ids=("put", "delete"))
def test_a_writer_that_dies_between_any_two_calls_leaves_the_old_value_or_the_new_one(root, url, change):
    ended, steps = False, 0
    while not ended:
        with safekeeper.open(url) as store:
            delete(store)
            put(store, b"oldest")
            attempt(root, 1, lambda store: put(store, b"old"))  # dies before it deletes the oldest
            assert (store.read([A]), len(files(root))) == ([b"old"], 2)
            ended = attempt(root, steps, change)
            changed = b"new" if change is not delete else None
            (found,) = store.read([A])
            assert found == changed if ended else found in (b"old", changed)
            assert list(store.keys("g")) == ([A.key] if found else [])
            put(store, b"next")
            assert store.read([A]) == [b"next"]
            assert len(files(root)) == 1
        steps += 1
    assert steps > 2


@pytest.mark.parametrize("clock", (lambda: 0, lambda: 4 * 10**18 + time.monotonic_ns()), ids=("behind", "ahead"))
def test_a_later_write_wins_whatever_the_clocks_say(monkeypatch, url, store, clock):
    put(store, b"1")
    with monkeypatch.context() as elsewhere, safekeeper.open(url) as other:
        elsewhere.setattr(time, "time_ns", clock)
        put(other, b"2")
        assert store.read([A]) == [b"2"]
    put(store, b"3")
    assert store.read([A]) == [b"3"]


def test_versions_of_one_handle_only_rise(monkeypatch, store, root):
    """So that a request that failed loses to a later one of the same handle, even if it was not listed."""
    names = []
    for now in (5, 4, 4, 6):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        put(store, b"")
        names += [path.name for path in files(root)]
        delete(store)
    assert names == sorted(names)
    assert len({name.partition("-")[0] for name in names}) == 4


def test_a_file_on_its_way_is_not_seen(root, store):
    put(store, b"old")
    (root / ".tmp" / "v7fffffffffffffff-00000000").write_bytes(b"SKF1half")
    assert store.read([A]) == [b"old"]
    assert (list(store.groups()), list(store.keys("g"))) == (["g"], [b"a"])


def test_what_is_no_object_is_left_alone(root, store):
    put(store, b"value")
    for name in ("README", "v0", ".DS_Store", "vffffffffffffffff-zzzzzzzz"):
        (root / "g" / "a.ckpt" / name).write_bytes(b"mine")
    assert store.read([A]) == [b"value"]
    delete(store)
    assert store.read([A]) == [None]
    assert list(store.keys("g")) == []
    assert len(files(root)) == 4


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": flip,
    "cut off": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut off in the head": lambda path: os.truncate(path, 8),
    "emptied": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_object_is_corruption_and_names_the_place(root, store, damage):
    put(store, bytes(100))
    (path,) = files(root)
    damage(path)
    with pytest.raises(Corruption, match=path.name):
        store.read([A])


class OnceBad(LocalStore):
    """A local folder that is read like a remote store, and whose first object comes with a flipped bit."""

    failed_is_over = False
    gets = 0

    def get(self, path, size=None):
        self.gets += 1
        content = super().get(path, size)
        return content if self.gets > 1 else content[:-1] + bytes([content[-1] ^ 1])


def test_a_bad_read_is_not_remembered_and_a_good_one_is(root, store):
    put(store, b"value")
    objects = OnceBad(fsspec.filesystem("file"), str(root))
    remote = ObjectsBackend(objects, "there")
    with pytest.raises(Corruption):
        remote.read([A])
    for _ in range(3):
        assert remote.read([A]) == [b"value"]
    assert objects.gets == 2


def test_an_object_in_the_place_of_another_is_corruption(root, store):
    put(store, b"a")
    put(store, b"b", B)
    a, b = files(root)
    a.write_bytes(b.read_bytes())
    with pytest.raises(Corruption, match="holds g/b instead of g/a"):
        store.read([A])


def test_deleted_ids_leave_no_files_and_no_folders(root, store):
    ids = [CheckpointId("g", b"%d" % n) for n in range(20)]
    store.write(Batch(dict.fromkeys(ids, b"")))
    for id in ids:
        delete(store, id)
    assert list((root / "g").iterdir()) == []


def test_nobody_else_may_look(root, store):
    put(store, b"")
    assert root.stat().st_mode & 0o777 == 0o700


def test_compact_removes_what_dead_writers_left_and_nothing_else(root, store):
    put(store, bytes(1000))
    attempt(root, 1, lambda store: put(store, b"kept"))
    put(store, b"kept too", B)
    for name, age in (("old", 2 * DAY), ("new", 0)):
        version = f"v{time.time_ns() - age:016x}-00000000"
        (root / ".tmp" / version).write_bytes(b"half")
        (root / "g" / f"{name}.ckpt").mkdir()
        (root / "g" / f"{name}.ckpt" / f"{version}.gone").touch()
    done = store.compact()
    assert store.read([A, B]) == [b"kept", b"kept too"]
    assert set(store.keys("g")) == {b"a", b"b"}
    assert [path.relative_to(root).parts[:-1] for path in files(root)] == [
        (".tmp",),
        ("g", "a.ckpt"),
        ("g", "b.ckpt"),
        ("g", "new.ckpt"),
    ]
    assert done.bytes_after < 1000 < done.bytes_before


def test_a_scan_gives_what_counts_and_notices_what_does_not_belong(root, store):
    values = {b"%d" % n: b"%d" % n for n in range(20)} | {b"long" * 100: b"long key"}
    for key, value in values.items():
        put(store, b"old", CheckpointId("g", key))
        put(store, value, CheckpointId("g", key))
    put(store, b"1", CheckpointId("g", b"deleted"))
    delete(store, CheckpointId("g", b"deleted"))
    (root / "g" / "3.ckpt" / "v0000000000000001-00000000").write_bytes(b"a writer that died left this")
    assert dict(pair for page in store.scan("g") for pair in page) == values
    (one,) = (root / "g" / "7.ckpt").iterdir()
    (other,) = (root / "g" / "8.ckpt").iterdir()
    other.write_bytes(one.read_bytes())
    with pytest.raises(Corruption, match="holds g/7, which belongs elsewhere"):
        list(store.scan("g"))


def test_a_scan_lists_again_what_was_replaced_since(monkeypatch, store, url):
    monkeypatch.setattr("safekeeper.backends.shared.pages.MOST_PAIRS", 5)
    for n in range(30):
        put(store, b"old", CheckpointId("g", b"%d" % n))
    pages = store.scan("g")
    found = dict(next(pages))
    with safekeeper.open(url) as other:
        for n in range(30):
            id = CheckpointId("g", b"%d" % n)
            if id.key not in found and n % 2:
                put(other, b"new", id)
            elif id.key not in found:
                delete(other, id)
    found |= dict(pair for page in pages for pair in page)
    assert sorted(set(found.values())) == [b"new", b"old"]


TOKEN, OTHER_TOKEN = b"0123456789abcdef", b"another token..."


class Interrupted(LocalStore):
    """Does something once, just before an object is created."""

    def __init__(self, store, act):
        super().__init__(store.files, store.root)
        self.act = act

    def put_new(self, path, pieces):
        act, self.act = self.act, None
        if act:
            act()
        return super().put_new(path, pieces)


def test_a_created_value_has_a_name_that_follows_from_what_is_there(root, store):
    assert store.create(A, b"1", TOKEN)
    assert [path.name for path in files(root)] == ["v0000000000000000-00000000.new"]
    delete(store)
    (tombstone,) = files(root)
    assert tombstone.name.endswith(".gone")
    assert not list(store.keys("g"))
    assert store.create(A, b"2", TOKEN)
    assert files(root)[1].name == f"v{int(tombstone.name[1:17], 16) + 1:016x}{tombstone.name[17:26]}.new"
    put(store, b"3")
    assert len(files(root)) == 3
    delete(store)
    (tombstone,) = files(root)
    assert tombstone.name.endswith(".gone")


@pytest.mark.parametrize("before", ("nothing", "a tombstone", "a tombstone in doubt"))
@pytest.mark.parametrize("length", (1, 2, 3, 4))
def test_whatever_happens_while_an_id_is_created_the_last_one_to_create_it_is_told_so(root, url, before, length):
    """All histories of creates, writes and deletes by another handle, between the listing and the put."""
    for number, steps in enumerate(itertools.product(range(3), repeat=length)):
        id = CheckpointId("g", b"%d" % number)
        with safekeeper.open(url) as other, safekeeper.open(url) as slow:
            if before != "nothing":
                if before == "a tombstone":
                    other.create(id, b"", TOKEN)
                else:
                    other._doubt_until = time.monotonic() + 600
                delete(other, id)
                other._doubt_until = 0
            there = None

            def act(other=other, id=id, steps=steps):
                nonlocal there
                for step in steps:
                    if step == 0:
                        assert other.create(id, b"theirs", OTHER_TOKEN) == (there in (None, b"theirs"))
                        there = there or b"theirs"
                    elif step == 1:
                        put(other, b"written", id)
                        there = b"written"
                    else:
                        delete(other, id)
                        there = None

            slow._store = Interrupted(slow._store, act)
            created = slow.create(id, b"mine", TOKEN)
            assert created == (there is None), steps
            expected = there or b"mine"
            assert other.read([id]) == [expected], steps
            assert other.create(id, b"theirs", OTHER_TOKEN) == (expected == b"theirs")
            assert other.create(id, b"mine", TOKEN) == (expected == b"mine")
            put(other, b"last", id)
            delete(other, id)
            assert other.read([id]) == [None]


def test_a_slow_delete_takes_nothing_that_was_created_since(root, url, store):
    with safekeeper.open(url) as slow:
        assert store.create(A, b"1", TOKEN)
        real, slow._store.remove = slow._store.remove, lambda path: (_ for _ in ()).throw(InterruptedError)
        listed = slow._objects("g/a.ckpt")
        delete(slow)  # it has put its tombstone, and not yet removed anything
        put(store, b"2")
        delete(store)
        assert store.create(A, b"3", TOKEN)
        for name in listed:
            real(f"g/a.ckpt/{name}")
        assert store.read([A]) == [b"3"]


def test_compact_keeps_what_others_may_go_by_for_a_day(monkeypatch, root, store):
    assert store.create(A, b"1", TOKEN)
    put(store, b"2")
    store.compact()
    assert len(files(root)) == 2
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 2 * DAY)
    store.compact()
    assert store.read([A]) == [b"2"]
    assert len(files(root)) == 1


def test_a_store_that_cannot_tell_does_not_claim_to_create(tmp_path):
    files = ArrowFSWrapper(pyarrow.fs.LocalFileSystem())
    assert not isinstance(ObjectsBackend(store_of(files, str(tmp_path), None), "there"), SupportsCreate)
    with safekeeper.open(f"objects+file://{tmp_path}") as store:
        assert isinstance(store, SupportsCreate)


def test_keys_reads_heads_only_and_only_of_ids_that_do_not_fit_into_a_name(monkeypatch, store):
    long = CheckpointId("g" * 255, b"long" * 1000)
    store.write(Batch({A: bytes(10**6), long: bytes(10**6)}))
    sizes = []
    get = LocalStore.get

    def spy(self, path, size=None):
        data = get(self, path, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(LocalStore, "get", spy)
    assert list(store.keys("g")) == [b"a"]
    assert sizes == []
    assert list(store.keys(long.group)) == [long.key]
    assert set(store.groups()) == {"g", long.group}
    assert max(sizes) < 40_000


def test_what_is_known_of_a_store_is_declared_and_nothing_else(url):
    with safekeeper.open(url) as local, safekeeper.open("objects+memory://x") as memory:
        assert (local.survives, local.scope) == (Survives.PROCESS, Scope.HOST)
        assert (memory.survives, memory.scope) == (Survives.NOTHING, Scope.PROCESS)


def test_a_file_system_that_is_not_known_here_is_used_by_its_folders(tmp_path):
    store = store_of(ArrowFSWrapper(pyarrow.fs.LocalFileSystem()), str(tmp_path), None)
    assert type(store) is FolderStore
    assert (store.survives, store.scope) == (Survives.NOTHING, Scope.NETWORK)
    with ObjectsBackend(store, "there", parallel=4) as backend:
        put(backend, b"1")
        put(backend, b"2")
        assert (backend.read([A]), list(backend.keys("g"))) == ([b"2"], [b"a"])
        assert len(files(tmp_path)) == 1
        delete(backend)
        assert (backend.read([A]), list(backend.groups())) == ([None], [])


@pytest.mark.parametrize(
    ("text", "says"),
    (
        ("objects:///x", "no backend for objects: .*did you mean 'objects\\+'"),
        ("objects+:///x", "fsspec knows no ''"),
        ("objects+nosuch://x", "fsspec knows no 'nosuch'"),
        ("objects+gcs://bucket", "needs a driver that is not installed: .*gcsfs"),
        ("objects+memory:", "names no bucket"),
        ("objects+s3:///prefix", "names no bucket"),
        ("objects+file:", "has no path"),
        ("objects+file://host/x", "three slashes"),
        ("objects+file:///x?parallel=0", "parallel is at least 1"),
        ("objects+file:///x?timeout=1", "has no option 'timeout'; it takes parallel"),
        ("objects+s3://b?timeout=0", "timeout is above 0"),
        ("objects+s3://b?retries=-1", "retries is 0 or more"),
        ("objects+s3://b?secret=x", "takes no secret in its URL"),
        ("objects+s3://b?nosuch=x", "no option 'nosuch'; it takes parallel, retries, timeout, .*endpoint-url"),
    ),
)
def test_a_bad_url_is_refused_with_one_line_that_says_what_to_do(text, says):
    with pytest.raises(BadUrl, match=says) as caught:
        safekeeper.open(text)
    assert "\n" not in str(caught.value)


def test_a_relative_path_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with safekeeper.open("objects+file:state") as store:
        put(store, b"1")
    assert len(files(tmp_path / "state")) == 1


@pytest.mark.parametrize("scheme", ["ftp", "http"])
def test_a_store_that_does_not_answer_is_named_without_its_password(scheme):
    with (
        pytest.raises(safekeeper.Unavailable, match=r"me:\*\*\*@127\.0\.0\.1:1/x: ") as caught,
        safekeeper.open(f"objects+{scheme}://me:QUIET@127.0.0.1:1/x") as store,
    ):
        store.read([CheckpointId("g", b"a")])
    assert "QUIET" not in str(caught.value)


def test_a_password_in_what_a_driver_says_is_not_repeated():
    with (
        pytest.raises(safekeeper.Unavailable, match=r"^place: http://me:\*\*\*@h/x is away$"),
        errors_as_unavailable("place"),
    ):
        raise RuntimeError("http://me:QUI/ET@h/x is away")
    with pytest.raises(safekeeper.Unavailable, match=r"^http://me:\*\*\*@h/x: gone$"), errors_as_unavailable("place"):
        raise OSError(0, "gone", "http://me:QUIET@h/x")
