"""What the abstract suite does not ask: atomic replace and create, transactions, large files, races and kills."""

import random
import subprocess
import threading
import time
from contextlib import suppress
from random import Random

import fsspec
import pytest

import safekeeper
from safekeeper import CheckpointId
from safekeeper.backends.memory import MemoryBackend
from safekeeper.errors import BadId, BadState, BadUrl, Unavailable
from safekeeper.integrations.filesystem import layout
from safekeeper.integrations.filesystem.fs import DeferredWriter
from safekeeper.integrations.filesystem.layout import FileEntry, VolumePath
from safekeeper.integrations.filesystem.volume import FileVolumes, VolumeWriter
from safekeeper.testing import Faulty
from safekeeper.testing.peer import start_python

from ...unruly import Turns, UnrulyStore

LARGE = random.Random(1).randbytes(700_000)
PART = 64 * 1024


@pytest.fixture
def fs(make_fs, kind):
    return make_fs(kind, part_bytes=PART)


def parts_of(fs, volume="main"):
    return sorted(fs.store.keys(layout.content_group(volume)))


def test_a_large_file_is_read_back_and_in_pieces(fs):
    fs.pipe("main/a/large", LARGE)
    assert fs.cat("main/a/large") == LARGE
    assert len(parts_of(fs)) == 11
    with fs.open("safekeeper://main/a/large") as file:
        file.seek(PART - 3)
        assert file.read(7) == LARGE[PART - 3 : PART + 4]
        assert file.seek(-5, 2) == len(LARGE) - 5
        assert file.read() == LARGE[-5:]
    assert fs.info("main/a/large")["size"] == len(LARGE)


def test_a_file_is_replaced_when_it_is_closed_and_its_old_parts_go(fs):
    fs.pipe("main/f", LARGE)
    old = set(parts_of(fs))
    with fs.open("main/f", "wb") as file:
        file.write(LARGE[::-1])
        assert fs.cat("main/f") == LARGE
    assert fs.cat("main/f") == LARGE[::-1]
    assert not old & set(parts_of(fs))
    fs.pipe("main/f", b"small")
    assert parts_of(fs) == []


def test_a_with_block_that_raises_leaves_the_old_file_and_no_parts(fs):
    fs.pipe("main/f", b"old")
    with pytest.raises(ZeroDivisionError), fs.open("main/f", "wb") as file:  # noqa: PT012
        file.write(LARGE)
        raise ZeroDivisionError
    assert fs.cat("main/f") == b"old"
    assert parts_of(fs) == []


def test_a_file_that_nobody_closed_is_not_there(fs):
    file = fs.open("main/f", "wb")
    file.write(b"half")
    del file
    assert not fs.exists("main/f")


def test_of_several_that_create_a_file_one_succeeds(fs):
    outcomes = []

    def create(number):
        with suppress(FileExistsError):
            fs.pipe_file("main/d/f", b"%d" % number * 100_000, mode="create")
            outcomes.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = outcomes
    assert fs.cat("main/d/f") == b"%d" % winner * 100_000
    assert len(parts_of(fs)) == 2


def test_files_of_a_transaction_appear_together_in_one_write(make_fs):
    fs = make_fs("log")
    with fs.transaction:
        for number in range(5):
            fs.pipe(f"main/t/{number}", b"%d" % number)
        assert not fs.exists("main/t/0")
    assert fs.ls("main/t", detail=False) == [f"main/t/{number}" for number in range(5)]
    with pytest.raises(ZeroDivisionError), fs.transaction:  # noqa: PT012
        fs.pipe("main/t/5", b"")
        raise ZeroDivisionError
    assert not fs.exists("main/t/5")


class Counting(Faulty):
    """Counts the writes."""

    writes = 0

    def write(self, batch):
        self.writes += 1
        return super().write(batch)


def test_small_files_share_a_write(make_fs):
    fs = make_fs("log")
    fs.mkdir("main/t")
    fs.files.store = counting = Counting(fs.store)
    fs.pipe({f"main/t/{number}": b"%d" % number for number in range(20)})
    assert counting.writes == 1
    assert len(fs.ls("main/t")) == 20


def test_a_listing_has_sizes_and_times_and_reads_no_content(fs):
    before = time.time() - 1
    fs.pipe({"main/d/large": LARGE, "main/d/small": b"12", "main/d/e/f": b""})
    found = {info["name"]: info for info in fs.ls("main/d")}
    assert {name: (info["size"], info["type"]) for name, info in found.items()} == {
        "main/d/large": (len(LARGE), "file"),
        "main/d/small": (2, "file"),
        "main/d/e": (0, "directory"),
    }
    assert all(before < info["mtime"] < time.time() + 1 for info in found.values())
    assert fs.modified("main/d/small").timestamp() == found["main/d/small"]["mtime"]
    for key in parts_of(fs):  # it lists all the same
        batch = safekeeper.Batch()
        batch.delete(CheckpointId(layout.content_group("main"), key))
        fs.store.write(batch)
    assert len(fs.ls("main/d")) == 3
    with pytest.raises(safekeeper.Corruption, match="main/d/large: part 0 of it is gone"):
        fs.cat("main/d/large")


def test_directories_are_deleted_with_what_is_in_them(fs):
    fs.pipe({"main/d/e/f": LARGE, "main/d/g": b"1", "main/dd": b"2"})
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("main/d")
    fs.rm("main/d", recursive=True)
    assert fs.find("main") == ["main/dd"]
    assert not fs.exists("main/d/e/f")
    assert parts_of(fs) == []
    assert set(fs.store.groups()) == {"files.main:/"}


def test_files_and_directories_do_not_replace_each_other(fs):
    fs.pipe("main/d/f", b"1")
    with pytest.raises(NotADirectoryError):
        fs.pipe("main/d/f/g", b"2")
    with pytest.raises(IsADirectoryError):
        fs.pipe("main/d", b"2")
    with pytest.raises(FileExistsError):
        fs.mkdir("main/d/f")
    with pytest.raises(NotADirectoryError):
        fs.rmdir("main/d/f")
    with pytest.raises(IsADirectoryError):
        fs.rm_file("main/d")


def test_files_are_renamed_copied_and_appended_to(fs):
    fs.pipe({"main/a": LARGE, "main/b": b"small"})
    fs.mv("main/a", "main/c")
    fs.mv("main/b", "main/d/b")
    fs.cp_file("main/c", "main/e")
    with fs.open("main/d/b", "ab") as file:
        file.write(b" and more")
    assert fs.find("main") == ["main/c", "main/d/b", "main/e"]
    assert (fs.cat("main/d/b"), fs.cat("main/c"), fs.cat("main/e")) == (b"small and more", LARGE, LARGE)
    fs.rm("main/c")
    assert fs.cat("main/e") == LARGE


def test_a_reader_notices_that_the_file_was_replaced(make_fs):
    fs = make_fs("log", part_bytes=1 << 20)
    fs.pipe("main/f", LARGE * 4)
    with fs.open("main/f") as file:
        file.read(10)
        fs.pipe("main/f", b"other")
        with pytest.raises(Unavailable, match="main/f was replaced while it was read: open it again"):
            file.read()


def test_any_name_can_be_had_and_long_paths_too(fs):
    names = ["main/ü/%41 b/\x07", "main/" + "/".join(["n" * 100] * 5) + "/f", "main/#/x", "main/a.content:/f"]
    for number, name in enumerate(names):
        fs.pipe(name, b"%d" % number)
    assert {name: fs.cat(name) for name in names} == {name: b"%d" % n for n, name in enumerate(names)}
    assert sorted(fs.find("main")) == sorted(names)


@pytest.mark.parametrize(
    ("path", "problem"),
    [("", "begins with a volume"), ("a b/f", "begins with a volume"), ("main/../f", "no . or ..")],
)
def test_bad_paths_are_named(make_fs, path, problem):
    with pytest.raises(BadId, match=problem):
        make_fs().pipe_file(path, b"")


def test_it_is_found_by_its_protocol_and_says_that_it_needs_a_store(tmp_path, monkeypatch):
    with pytest.raises(BadUrl, match="give the file system a store"):
        fsspec.filesystem("safekeeper", skip_instance_cache=True)
    monkeypatch.setenv("SAFEKEEPER_STORE", f"log://{tmp_path}/store")
    with fsspec.open("safekeeper://main/f", "w") as file:
        file.write("hello")
    fs = fsspec.filesystem("safekeeper")
    assert fs.ls("", detail=False) == ["main"]
    assert fs.cat("main/f") == b"hello"
    fs.close()
    type(fs).clear_instance_cache()


# The layout, which others read and write


def test_paths_become_the_ids_of_the_page():
    path = VolumePath.parse("main/ü %/d/name with ü")
    assert path.id == CheckpointId("files.main:/%C3%BC %25/d", "name with ü".encode())
    assert VolumePath.parse("v/f").id == CheckpointId("files.v:/", b"f")
    long = VolumePath.parse("v/" + "d" * 300 + "/f")
    assert long.id.group == "files.v:#98db875c6c12518d37e0d454a2bd887cbb95f168"
    assert layout.part_id("v", bytes(range(16)), 7) == CheckpointId(
        "files.v.content", b"000102030405060708090a0b0c0d0e0f_00000007"
    )


def test_entries_have_the_bytes_of_the_page_for_ever():
    id = CheckpointId("files.v:/", b"f")
    small = bytes.fromhex("0166 e803000000000000 0200000000000000") + bytes(16) + bytes.fromhex("00000001 7fdc144f")
    entry = FileEntry(False, 1000, 2, None, 1 << 24, 0x4F14DC7F, b"12")
    assert entry.encode() == small + b"12"
    assert FileEntry.decode(id, entry.encode()) == entry
    parts = FileEntry(False, 1000, 5 << 30, bytes(range(1, 17)), 1 << 24, 7)
    assert FileEntry.decode(id, parts.encode()) == parts
    assert parts.count == 320
    directory = FileEntry(True, 1000)
    assert FileEntry.decode(id, directory.encode()) == directory
    with pytest.raises(BadState, match="upgrade safekeeper"):
        FileEntry.decode(id, b"\x02" + small[1:])


# Races and kills


@pytest.mark.parametrize("seed", range(60))
def test_a_file_that_is_written_while_its_directory_is_deleted_is_listed_or_gone(seed):
    random = Random(seed)
    turns = Turns(random)
    store = UnrulyStore(random, turns)
    files = FileVolumes(store, part_bytes=4)
    file, directory = VolumePath.parse("v/d/e/f"), VolumePath.parse("v/d")

    def write():
        with VolumeWriter(files, file) as writer:
            writer.write(b"0123456789")
        files.put({file: writer.entry})

    def delete():
        with suppress(FileNotFoundError):
            files.delete_tree(directory)

    def remove_empty():
        with suppress(OSError):
            files.remove_directory(VolumePath.parse("v/d/e"))

    turns.run(lambda: files.make_directory(VolumePath.parse("v/d/e"), exist_ok=True))
    turns.run(write, remove_empty if seed % 2 else delete)

    def look():
        found = files.find(file)
        seen = [str(path) for path, _ in walk(files, VolumePath.parse("v")) if path == file]
        assert bool(seen) == (found is not None)
        if found is not None:
            assert files.read_part(file, found, 2) == b"89"

    turns.run(look)


def walk(files, path):
    for below, entry in files.entries_in(path):
        yield below, entry
        if entry.is_directory:
            yield from walk(files, below)


@pytest.mark.parametrize("size", [PART + 5, len(LARGE)], ids=["at the close", "in a write"])
def test_a_file_that_failed_while_it_was_written_does_not_stand(size):
    """Whoever closes it in a `finally`, without `with`, gets the old file or the new one, never a piece."""
    with Faulty(MemoryBackend()) as store:
        files = FileVolumes(store, PART)
        path = VolumePath.parse("main/f")
        files.put({path: FileEntry(False, layout.now(), 3, content=b"old", part_bytes=PART)})
        writer = DeferredWriter(files, path, exclusive=False, autocommit=True)
        store.fail("write", skip=1, times=1)
        if size > 2 * PART:
            with pytest.raises(Unavailable):
                writer.write(LARGE[:size])
        else:
            writer.write(LARGE[:size])
        with pytest.raises(Unavailable):
            writer.close()
        assert files.get(path).content == b"old"
        assert list(store.keys(layout.content_group("main"))) == []


def test_sweep_spares_a_file_in_a_directory_that_was_deleted_halfway(fs):
    """The deleter found it empty, a file came, and the deleter died when it had deleted the directory's entry."""
    fs.makedirs("main/a/b")
    fs.pipe("main/a/b/f", LARGE)
    fs.files._delete([VolumePath.parse("main/a/b").id])
    assert fs.sweep("main", age=-60) == 0
    assert fs.cat("main/a/b/f") == LARGE


@pytest.mark.crash
def test_killed_at_any_moment_a_file_is_old_or_new_and_sweep_removes_the_rest(make_fs, new_url):
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    url, chance = new_url("log"), Random(seed)
    last = -1
    for _ in range(8):
        with start_python(
            "tests.integrations.filesystem.writer", url, str(last + 1), stdout=subprocess.PIPE
        ) as process:
            process.stdout.readline()
            time.sleep(chance.random() * 0.4)
            process.kill()
            acknowledged = [int(line) for line in process.stdout.read().splitlines()]
        last = max([last, *acknowledged])
        fs = make_fs(url=url, part_bytes=PART)
        if last >= 0:
            content = fs.cat("main/d/f")
            number = int(content[:8])
            assert number in (last, last + 1)
            assert content == b"%08d" % number * 40_000
            last = number
        fs.close()
    fs = make_fs(url=url, part_bytes=PART)
    fs.sweep("main", age=0)
    named = 1 if last < 0 else 5
    assert len(parts_of(fs)) in (0, named)
    assert last >= 0
