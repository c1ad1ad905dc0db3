"""Files by the agent's requests, and the same files by Python's file system over the same store."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
import zlib

import pytest

from safekeeper.agent.server import AgentServer
from safekeeper.backends.memory import MemoryBackend
from safekeeper.dev.s3 import SETTINGS, S3Server
from safekeeper.fsspec import SafekeeperFileSystem
from safekeeper.integrations.filesystem import layout
from safekeeper.integrations.filesystem.layout import VolumePath
from safekeeper.keeper import SafeKeeper

STAT, LIST, READ_FILE, WRITE_PART, WRITE_FILE, DISCARD, MAKE_DIRECTORY, REMOVE = range(5, 13)
DONE, FILE_LIST, FILE, ERROR = 65, 69, 70, 127
BAD_ID, BAD_FRAME = 6, 7
NOT_FOUND, EXISTS, NOT_DIRECTORY, IS_DIRECTORY, NOT_EMPTY, REPLACED = range(9, 15)
CREATE, AGAIN = 1, 2
PART = 64 * 1024
LARGE = random.Random(2).randbytes(3 * PART + 5)


def field(data):
    return struct.pack("<I", len(data)) + data


def new_write():
    return (time.time_ns() // 1_000_000).to_bytes(6) + os.urandom(10)


class Files:
    """The requests about files, on one connection."""

    def __init__(self, peer):
        self.peer = peer

    def ask(self, kind, path, rest=b""):
        return self.peer.ask(kind, field(path.encode()) + rest)

    def refused(self, kind, path, rest):
        """The code of the answer to what is not a request."""
        self.peer.send(self.peer.frame(kind, 7, field(path.encode()) + rest))
        return self.peer.reply().code

    def stat(self, path):
        first, *_ = self.ask(STAT, path)
        return first.code if first.kind == ERROR else entries(first.body)[0]

    def list(self, path):
        *pages, last = self.ask(LIST, path)
        return last.code if last.kind == ERROR else [entry for page in pages for entry in entries(page.body)]

    def read(self, path, write=bytes(16), number=0):
        first, *_ = self.ask(READ_FILE, path, write + struct.pack("<I", number))
        if first.kind == ERROR:
            return first.code
        modified, size, write, part_bytes, crc, length = struct.unpack_from("<qQ16sIII", first.body)
        assert abs(modified / 1000 - time.time()) < 3600
        data = first.body[44:]
        assert len(data) == length
        return size, write, part_bytes, crc, data

    def part(self, path, write, number, data):
        (reply,) = self.ask(WRITE_PART, path, write + struct.pack("<I", number) + field(data))
        return reply.kind

    def commit(self, path, write, data, size=None, flags=0, part_bytes=PART, crc=None):
        size = len(data) if size is None else size
        head = struct.pack("<B16sQII", flags, write, size, part_bytes, zlib.crc32(data) if crc is None else crc)
        return self.simple(WRITE_FILE, path, head + field(data))

    def write(self, path, data, flags=0, write=None):
        """A whole file, in parts if it is large, as the JVM does it."""
        write = write or new_write()
        whole = range(0, len(data) - PART, PART)
        for number, at in enumerate(whole):
            assert self.part(path, write, number, data[at : at + PART]) == DONE
        return self.commit(path, write, data[len(whole) * PART :], len(data), flags, crc=zlib.crc32(data))

    def simple(self, kind, path, rest=b""):
        (reply,) = self.ask(kind, path, rest)
        return reply.kind if reply.kind == DONE else reply.code


def entries(body):
    found, at = [], 4
    for _ in range(struct.unpack_from("<I", body)[0]):
        (length,) = struct.unpack_from("<I", body, at)
        name = body[at + 4 : at + 4 + length].decode()
        is_directory, modified, size = struct.unpack_from("<BqQ", body, at + 4 + length)
        assert abs(modified / 1000 - time.time()) < 3600 or not name
        found.append((name, bool(is_directory), size))
        at += 4 + length + 17
    assert at == len(body)
    return sorted(found)


@pytest.fixture(params=["log", "file"])
def on(request, shared_on):
    """A store whose batches are atomic, and one whose are not."""
    return shared_on(request.param)


@pytest.fixture
def agent(on):
    return on[0]


@pytest.fixture
def files(agent):
    with agent.peer() as peer:
        yield Files(peer)


@pytest.fixture
def fs(on):
    """The same files, for Python; none are left for the next test."""
    fs = SafekeeperFileSystem(on[1], skip_instance_cache=True, part_bytes=PART)
    yield fs
    fs.files.delete_tree(VolumePath("main", ()))
    fs.sweep("main", age=-60)  # what those left behind that failed
    fs.close()


def parts(fs):
    return list(fs.store.keys(layout.content_group("main")))


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, PART, PART + 1, 3 * PART + 5])
def test_what_one_side_writes_the_other_one_reads(files, fs, size):
    content = LARGE[:size]
    assert files.write("main/q/offsets/0", content) == DONE
    assert fs.cat("main/q/offsets/0") == content
    fs.pipe("main/p/0", content)
    read, write, part_bytes, crc, data = files.read("main/p/0")
    for number in range(1, -(-read // part_bytes) if any(write) else 0):
        data += files.read("main/p/0", write, number)[4]
    assert (data, crc) == (content, zlib.crc32(content))
    assert files.stat("main/q/offsets/0") == ("0", False, size)
    assert fs.info("main/q/offsets/0")["size"] == size
    assert files.list("main/q") == [("offsets", True, 0)]


def test_a_file_that_begins_like_a_value_in_parts_is_stored_as_it_is(files, fs):
    content = b"SKV1" + LARGE
    assert files.write("main/f", content) == DONE
    assert fs.cat("main/f") == content


def test_a_file_is_created_once_and_its_writer_may_ask_again(files, fs):
    mine, other = new_write(), new_write()
    assert files.write("main/q/0", b"mine", CREATE, mine) == DONE
    assert files.write("main/q/0", b"mine", CREATE | AGAIN, mine) == DONE
    assert files.write("main/q/0", b"other", CREATE, other) == EXISTS
    assert files.write("main/q/0", b"other", CREATE | AGAIN, other) == EXISTS
    assert fs.cat("main/q/0") == b"mine"
    assert files.write("main/q", b"", CREATE) == EXISTS
    assert files.write("main/q", b"") == IS_DIRECTORY


def test_of_many_that_create_a_file_at_once_one_succeeds(agent, fs):
    for turn in range(20):
        path, answers, begin = f"main/race/{turn}", {}, threading.Barrier(4)

        def create(who, path=path, answers=answers, begin=begin):
            with agent.peer() as peer:
                begin.wait()
                answers[who] = Files(peer).write(path, b"%d" % who * 5000, CREATE)

        threads = [threading.Thread(target=create, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [who for who, answer in answers.items() if answer == DONE]
        assert sorted(answers.values()) == [EXISTS] * 3 + [DONE]
        assert fs.cat(path) == b"%d" % winner * 5000


def test_a_replaced_file_gives_its_parts_back_and_who_reads_it_is_told(files, fs):
    files.write("main/f", LARGE)
    _, write, *_ = files.read("main/f")
    files.write("main/f", LARGE[::-1])
    assert files.read("main/f", write, 1) == REPLACED
    assert len(parts(fs)) == 4
    assert files.refused(READ_FILE, "main/f", bytes(16) + struct.pack("<I", 4)) == BAD_FRAME


def test_a_discarded_write_leaves_nothing(files, fs):
    write = new_write()
    assert files.part("main/f", write, 0, LARGE[:PART]) == DONE
    assert files.simple(DISCARD, "main/f", write + struct.pack("<I", 1)) == DONE
    assert parts(fs) == []
    assert files.stat("main/f") == NOT_FOUND


def test_a_commit_that_comes_again_counts_once(files, fs):
    write = new_write()
    assert files.write("main/f", LARGE, 0, write) == DONE
    assert files.commit("main/f", write, LARGE[3 * PART :], len(LARGE), AGAIN, crc=zlib.crc32(LARGE)) == DONE
    assert fs.cat("main/f") == LARGE


@pytest.mark.parametrize("flags", [0, CREATE], ids=["replace", "create"])
@pytest.mark.parametrize("meanwhile", ["replaced", "deleted"])
def test_a_commit_that_comes_again_never_brings_back_a_file_whose_parts_are_gone(files, fs, flags, meanwhile):
    write = new_write()
    assert files.write("main/f", LARGE, flags, write) == DONE
    if meanwhile == "replaced":
        fs.pipe("main/f", b"other")
    else:
        fs.rm("main/f")
    last = LARGE[3 * PART :]
    assert files.commit("main/f", write, last, len(LARGE), flags | AGAIN, crc=zlib.crc32(LARGE)) == REPLACED
    assert (fs.cat("main/f") == b"other") if meanwhile == "replaced" else not fs.exists("main/f")


@pytest.mark.parametrize("flags", [0, CREATE], ids=["replace", "create"])
@pytest.mark.parametrize("size", [5000, len(LARGE)], ids=["one part", "parts"])
def test_a_commit_that_comes_again_while_the_file_is_deleted_is_whole(files, fs, flags, size):
    """Whoever deletes it has deleted the entry, and gets to the parts when the commit has come again."""
    write, content, path = new_write(), LARGE[:size], VolumePath.parse("main/f")
    assert files.write("main/f", content, flags, write) == DONE
    entry = fs.files.get(path)
    fs.files._delete([path.id])
    last = content[(size - 1) // PART * PART :]
    assert files.commit("main/f", write, last, size, flags | AGAIN, crc=zlib.crc32(content)) == DONE
    fs.files.delete_content(path, entry)
    assert fs.cat("main/f") == content


def test_a_commit_that_comes_again_sees_to_the_directories_above_its_file(files, fs):
    """The first one has written the entry, and did not get to look at them."""
    write = new_write()
    assert files.write("main/d/f", LARGE, 0, write) == DONE
    fs.files._delete([VolumePath.parse("main/d").id])
    assert files.stat("main/d") == NOT_FOUND
    assert files.commit("main/d/f", write, LARGE[3 * PART :], len(LARGE), AGAIN, crc=zlib.crc32(LARGE)) == DONE
    assert files.stat("main/d") == ("d", True, 0)
    assert files.list("main") == [("d", True, 0)]


def test_what_was_committed_is_not_discarded(files, fs):
    """The commit may have succeeded, and its answer got lost."""
    write = new_write()
    assert files.write("main/f", LARGE, 0, write) == DONE
    assert files.simple(DISCARD, "main/f", write + struct.pack("<I", 4)) == DONE
    assert fs.cat("main/f") == LARGE


def test_directories_are_made_listed_and_removed(files, fs):
    assert files.simple(MAKE_DIRECTORY, "main/a/b") == DONE
    assert files.simple(MAKE_DIRECTORY, "main/a/b") == DONE
    assert files.list("main/a/b") == []
    assert files.write("main/a/b/f", LARGE) == DONE
    assert files.list("main/a/b") == [("f", False, len(LARGE))]
    assert files.list("main/a/b/f") == NOT_DIRECTORY
    assert files.simple(MAKE_DIRECTORY, "main/a/b/f") == NOT_DIRECTORY
    assert files.write("main/a/b/f/g", b"") == NOT_DIRECTORY
    assert files.read("main/a") == IS_DIRECTORY
    assert files.simple(REMOVE, "main/a", b"\0") == NOT_EMPTY
    assert files.simple(REMOVE, "main/a", b"\1") == DONE
    assert files.simple(REMOVE, "main/a", b"\1") == NOT_FOUND
    assert files.list("main/a") == NOT_FOUND
    assert files.stat("main") == ("", True, 0)
    assert parts(fs) == []


def test_a_long_list_comes_in_several_frames(files, fs):
    fs.pipe({f"main/many/{number:05}": b"x" for number in range(1100)})
    *pages, done = files.ask(LIST, "main/many")
    assert len(pages) == 2
    assert done.kind == DONE
    assert len(files.list("main/many")) == 1100


@pytest.mark.parametrize(
    ("path", "code"),
    [("", BAD_ID), ("no volume!/f", BAD_ID), ("main/../f", BAD_ID), ("main", IS_DIRECTORY)],
)
def test_a_bad_path_is_refused(files, fs, path, code):
    assert files.write(path, b"") == code


@pytest.mark.parametrize(
    ("write", "data", "size", "part_bytes"),
    [(bytes(16), b"", 0, PART), (b"x" * 16, b"", 0, 0), (b"x" * 16, b"abc", 4, PART), (b"x" * 16, b"abc", 3, 1 << 27)],
    ids=["a write without a name", "parts of nothing", "too few bytes", "parts that are too large"],
)
def test_a_bad_commit_is_refused(files, fs, write, data, size, part_bytes):
    commit = struct.pack("<B16sQII", 0, write, size, part_bytes, zlib.crc32(data)) + field(data)
    assert files.refused(WRITE_FILE, "main/f", commit) == BAD_FRAME


def test_how_many_requests_a_file_takes_in_an_object_store(tmp_path, connect, monkeypatch):
    """One for each directory above it, which it looks at when it is written, and these for the file itself."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    with S3Server(tmp_path / "s3") as server:
        url = f"objects+s3://{server.make_bucket()}?endpoint-url={server.endpoint}"
        keeper = SafeKeeper(url, serializer=None, overflow="block")
        with keeper, AgentServer(keeper, f"{tmp_path}/agent.sock", 1 << 20), connect() as peer:
            files = Files(peer)

            def requests(path, flags=0):
                before = server.requests()
                assert files.write(path, b"v1", flags) == DONE
                return server.requests() - before

            requests("main/q/offsets/0", CREATE)
            assert requests("main/q/offsets/1", CREATE) <= 2 + 4
            requests("main/q/state/0/1/1.delta")
            assert requests("main/q/state/0/1/2.delta") <= 4 + 3
            assert requests("main/q/state/0/1/2.delta") <= 4 + 5


def test_a_directory_that_another_one_deletes_is_there_again_with_the_next_file(files, fs):
    assert files.write("main/a/b/f", b"1") == DONE
    fs.rm("main/a", recursive=True)
    assert files.write("main/a/b/g", b"2") == DONE
    assert files.list("main/a") == [("b", True, 0)]
    assert files.list("main/a/b") == [("g", False, 1)]
    assert fs.cat("main/a/b/g") == b"2"


def test_a_directory_that_the_agent_has_deleted_may_become_a_file(files, fs):
    assert files.write("main/a/f", b"1") == DONE
    assert files.simple(REMOVE, "main/a", b"\1") == DONE
    assert files.write("main/a", b"a file") == DONE
    assert files.write("main/a/f", b"1") == NOT_DIRECTORY
    assert fs.cat("main/a") == b"a file"
    assert fs.find("main") == ["main/a"]


def test_a_backend_that_cannot_create_takes_no_checkpoints_and_says_so(tmp_path, connect):
    """It takes other files: what is only replaced needs no create."""

    class Plain(MemoryBackend):
        create = None

    keeper = SafeKeeper(Plain(), serializer=None, overflow="block")
    with keeper, AgentServer(keeper, f"{tmp_path}/agent.sock", 1 << 20), connect() as peer:
        files = Files(peer)
        assert files.write("main/q/f", b"") == DONE
        commit = struct.pack("<B16sQII", CREATE, new_write(), 0, PART, 0) + field(b"")
        (reply,) = files.ask(WRITE_FILE, "main/q/metadata", commit)
        assert "SupportsCreate" in reply.message
        assert "use another backend" in reply.message
        assert "\n" not in reply.message
        assert files.list("main/q") == [("f", False, 0)]


class HeldBack(MemoryBackend):
    """Writes when it may, and counts how often it wrote files of the volume."""

    def __init__(self):
        super().__init__()
        self.may_write, self.writing, self.sizes = threading.Event(), threading.Event(), []
        self.may_write.set()

    def write(self, batch):
        self.writing.set()
        assert self.may_write.wait(60)
        self.sizes.append(len(batch))
        return super().write(batch)


def test_small_files_that_come_together_share_a_write(tmp_path, connect):
    store = HeldBack()
    keeper = SafeKeeper(store, serializer=None, overflow="block")
    with keeper, AgentServer(keeper, f"{tmp_path}/agent.sock", 1 << 20), connect() as peer:
        assert Files(peer).write("main/q/first", b"") == DONE
        store.may_write.clear()
        store.writing.clear()
        store.sizes.clear()
        peer.send(peer.frame(1, 7, field(b"g") + field(b"k") + field(b"v")))
        assert store.writing.wait(60)
        threads = [threading.Thread(target=_write_one, args=(connect, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while keeper.metrics().storage_queue_entries < 16 and time.monotonic() < deadline:
            time.sleep(0.01)
        store.may_write.set()
        for thread in threads:
            thread.join()
        assert peer.reply().kind == DONE
    assert store.sizes == [1, 16]  # what held them up, then all: each an entry and a part


def _write_one(connect, number):
    with connect() as peer:
        assert Files(peer).write(f"main/q/{number}", b"x" * 10_000) == DONE
