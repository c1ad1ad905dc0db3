"""A writer: who may write, what a failing disk does, what is shared and what is left behind."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Closed, Columns, Conflict, Corruption, Survives, Unavailable
from safekeeper.backends.log import claim
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.background import Background
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.options import LogOptions
from safekeeper.testing.peer import Peer

from .killing import kill
from .power import QuickFiles

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def id_of(name: object) -> CheckpointId:
    return CheckpointId("group", str(name).encode())


def put(store: LogBackend, **values: bytes) -> None:
    store.write(Batch({id_of(name): value for name, value in values.items()}))


def get(store: LogBackend, name: str) -> bytes | None:
    return store.read([id_of(name)])[0]


# --- who writes -------------------------------------------------------------------------------------------------------


def test_a_writer_of_version_1_shares_no_root_and_is_named_in_the_refusal(tmp_path):
    with Peer(f"log://{tmp_path}/store") as peer, safekeeper.open(f"log://{tmp_path}/store") as store:
        peer.write(Batch({id_of("a"): b"theirs"}))
        (manifest,) = (tmp_path / "store").glob("*/manifest")
        manifest.write_bytes(manifest.read_bytes().replace(b"safekeeper-log 2 ", b"safekeeper-log 1 ", 1))
        with pytest.raises(Conflict, match=f"is being written by process {peer._process.pid} on .*: close it there"):
            put(store, a=b"ours")
        assert get(store, "a") == b"theirs"
        peer.reopen()  # without a write it is no writer
        put(store, a=b"ours")
        assert peer.read([id_of("a")]) == [b"ours"]


def test_a_reader_in_another_process_sees_every_write_when_it_has_returned(tmp_path):
    url = f"log://{tmp_path}/store?segment=8K"
    with Peer(url) as reader, safekeeper.open(url) as store:
        assert reader.read([id_of("a")]) == [None]
        for turn in range(60):
            put(store, a=b"%d" % turn, **{f"x{turn % 7}": os.urandom(900)})
            assert reader.read([id_of("a")]) == [b"%d" % turn]
            if turn % 20 == 0:
                store.compact()
                assert set(reader.keys("group")) == set(store.keys("group"))
        assert list(reader.groups()) == ["group"]


def test_a_child_that_outlives_a_killed_writer_does_not_keep_its_lock(tmp_path):
    program = f"""
import os, sys, time
import safekeeper
from safekeeper import Batch, CheckpointId
store = safekeeper.open("log://{tmp_path}/store")
store.write(Batch({{CheckpointId("group", b"a"): b"1"}}))
if os.fork() == 0:
    print("ready", os.getpid(), flush=True)
    time.sleep(600)
os.wait()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        parent.kill()
        parent.wait()
        try:
            with LogBackend(tmp_path / "store") as store:
                put(store, a=b"2")
                assert get(store, "a") == b"2"
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("moment", ("opened", "about to be closed"))
def test_a_child_that_is_forked_while_a_lock_comes_or_goes_does_not_get_it(tmp_path, monkeypatch, moment):
    children: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(any(path.endswith("/lock") for path in open_paths()))
        children.append(child)

    def fork_meanwhile() -> None:
        if os.getpid() != parent:  # a child closes what it inherits by the same function: it forks no further
            return
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join(0.3)  # it may have to wait until this is over
        threads.append(thread)

    threads: list[threading.Thread] = []
    parent = os.getpid()
    with (
        LogBackend(tmp_path / "another", None, QuickFiles()) as another,
        LogBackend(tmp_path / "store", None, QuickFiles()) as store,
        monkeypatch.context() as patch,
    ):
        put(another, a=b"1")  # so that a child has a lock to close
        if moment == "opened":
            patch.setattr(claim, "os", Interposed(open=lambda *args: (os.open(*args), fork_meanwhile())[0]))
        put(store, a=b"1")
        if moment == "about to be closed":
            patch.setattr(claim, "os", Interposed(close=lambda fd: (fork_meanwhile(), os.close(fd))))
            store.close()
        for thread in threads:  # here, so that a child always finds what is patched
            thread.join()
    assert threads
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(threads)


def open_paths() -> list[str]:
    """What this process has open."""
    paths = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
    return paths


class Interposed:
    """The module `os` with some of its functions replaced."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def test_a_listing_in_a_child_that_was_forked_while_somebody_read_ends_with_closed(tmp_path):
    with LogBackend(tmp_path / "store", None, QuickFiles()) as store:
        put(store, a=b"1", b=b"2")
        keys = store.keys("group")
        next(keys)
        with store._log.root.own.lock:  # as another thread would hold it for a moment
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(30)
                try:
                    next(keys)
                except Closed:
                    os._exit(0)
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert set(keys) <= {b"a", b"b"}


def test_handles_of_one_root_share_a_writer_however_they_name_it(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with LogBackend(tmp_path / "store") as one, LogBackend(tmp_path / "link") as other:
        put(one, a=b"1")
        put(other, b=b"2")
        assert get(other, "a") == b"1"
        assert get(one, "b") == b"2"


def test_handles_of_one_root_with_different_options_are_refused(tmp_path):
    with LogBackend(tmp_path) as store:
        put(store, a=b"1")
        with LogBackend(tmp_path, LogOptions(sync="none")) as other, pytest.raises(BadUrl, match="other options"):
            get(other, "a")


def test_nobody_else_can_look_into_it(tmp_path):
    with LogBackend(tmp_path / "store") as store:
        put(store, a=b"1")
        store.compact()
        for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "problem"),
    (
        ("sync=sometimes", "it takes always, interval, none"),
        ("sync-interval=0", "above 0"),
        ("segment=1K", "4K to 4G"),
        ("compact-dead=2", "0.05 to 0.95"),
        ("compact-rate=0", "above 0"),
    ),
)
def test_an_option_that_makes_no_sense_is_refused(tmp_path, query, problem):
    with pytest.raises(BadUrl, match=problem):
        safekeeper.open(f"log://{tmp_path}/store?{query}")


def test_less_sync_declares_less(tmp_path):
    with LogBackend(tmp_path / "a") as always, LogBackend(tmp_path / "b", LogOptions(sync="interval")) as interval:
        assert Survives.PROCESS in always.survives
        assert interval.survives == Survives.NOTHING


@pytest.mark.parametrize("sync", ("interval", "none"))
def test_without_a_sync_a_write_calls_no_kernel_and_reaches_the_disk_later(tmp_path, sync):
    files = CountingFiles()
    with LogBackend(tmp_path, LogOptions(sync=sync, sync_interval=600), files) as store:
        put(store, first=b"")
        before = files.calls
        for turn in range(100):
            put(store, a=b"%d" % turn)
            assert get(store, "a") == b"%d" % turn
        assert files.calls == before
    with LogBackend(tmp_path) as store:
        assert get(store, "a") == b"99"


def test_at_an_interval_what_was_written_survives_a_kill(tmp_path):
    files = CountingFiles()
    store = LogBackend(tmp_path, LogOptions(sync="interval", sync_interval=0.02), files)
    put(store, a=b"1")
    assert files.synced.wait(60)
    while get_after_kill(store, tmp_path) != b"1":
        pass
    kill(store)


def get_after_kill(store: LogBackend, root: Path) -> bytes | None:
    with Peer(f"log://{root}") as reader:
        return reader.read([id_of("a")])[0]


class CountingFiles(Files):
    def __init__(self) -> None:
        self.calls = 0
        self.synced = threading.Event()

    def write(self, *args) -> None:
        self.calls += 1
        super().write(*args)

    def write_synced(self, *args) -> None:
        self.calls += 1
        super().write_synced(*args)

    def sync(self, fd) -> None:
        super().sync(fd)
        self.synced.set()


# --- a failing disk ---------------------------------------------------------------------------------------------------


class FailingFiles(QuickFiles):
    """Fails the next so many calls of one kind, half-way through."""

    def __init__(self) -> None:
        self.method = ""
        self.error = 0
        self.times = 0

    def fail(self, method: str, error: int, times: int = 1) -> None:
        self.method, self.error, self.times = method, error, times

    def _strike(self, method: str) -> None:
        if self.times and self.method == method:
            self.times -= 1
            raise OSError(self.error, os.strerror(self.error))

    def create(self, path):
        self._strike("create")
        return super().create(path)

    def write(self, fd, parts, offset):
        self._strike("write")
        super().write(fd, parts, offset)

    def write_synced(self, fd, parts, offset):
        if self.times and self.method == "write_synced":
            data = b"".join(parts)
            super().write_synced(fd, [data[: len(data) // 2]], offset)
        self._strike("write_synced")
        super().write_synced(fd, parts, offset)
        self._strike("sync after write")

    def sync_folder(self, path):
        self._strike("sync_folder")

    def replace(self, source, target):
        self._strike("replace")
        super().replace(source, target)


@pytest.mark.parametrize("method", ("write_synced", "sync after write"))
@pytest.mark.parametrize("error", (errno.EIO, errno.ENOSPC))
def test_nothing_is_written_behind_a_write_that_failed(tmp_path, method, error):
    files = FailingFiles()
    with LogBackend(tmp_path / "store", None, files) as store:
        put(store, a=b"1", b=b"1")
        files.fail(method, error)
        with pytest.raises(Unavailable):
            put(store, a=b"failed" * 50)
        assert get(store, "a") == b"1"
        put(store, b=b"2")
        assert [get(store, "a"), get(store, "b")] == [b"1", b"2"]
        kill(store)
    with LogBackend(tmp_path / "store") as store:
        assert [get(store, "a"), get(store, "b")] == [b"1", b"2"], (
            "what failed came back, although a later write returned"
        )
        assert list(store.verify()) == []
    assert len(list((tmp_path / "store" / "writer-1").glob("*.segment"))) == 2


@pytest.mark.parametrize("method", ("create", "write_synced", "sync_folder", "replace"))
@pytest.mark.parametrize("skip", range(3))
def test_a_disk_that_fails_while_a_segment_is_begun_loses_nothing(tmp_path, method, skip):
    files = FailingFiles()
    acknowledged = {}
    with LogBackend(tmp_path / "store", LogOptions(segment=4096), files) as store:
        for turn in range(20):
            if turn % 4 == skip:
                files.fail(method, errno.ENOSPC, times=1 + skip)
            value = bytes([turn]) * 1500
            try:
                put(store, **{f"k{turn % 5}": value})
            except Unavailable:
                continue
            acknowledged[f"k{turn % 5}"] = value
        files.times = 0
        assert {name: get(store, name) for name in acknowledged} == acknowledged
        kill(store)
    with LogBackend(tmp_path / "store") as store:
        put(store, after=b"all")
        assert {name: get(store, name) for name in acknowledged} == acknowledged
        assert list(store.verify()) == []


@pytest.mark.parametrize("method", ("create", "write_synced", "sync after write", "sync_folder", "replace"))
def test_a_disk_that_stays_full_is_not_filled_further(tmp_path, method):
    files = FailingFiles()
    with LogBackend(tmp_path / "store", LogOptions(segment=4096), files) as store:
        put(store, a=b"1")
        files.fail(method, errno.ENOSPC, times=1000)
        for _ in range(40):
            with pytest.raises(Unavailable):
                put(store, a=bytes(4000))
        assert files_of(tmp_path / "store") <= 12
        files.times = 0
        put(store, a=b"2")
        assert get(store, "a") == b"2"
    with LogBackend(tmp_path / "store") as store:
        assert get(store, "a") == b"2"


class StrikingFiles(QuickFiles):
    """Raises at one of the calls that it gets, before or after it has done what was asked."""

    def __init__(self, error: BaseException, after: bool) -> None:
        self._error, self._after = error, after
        self.calls_left = -1

    def arm(self, calls: int) -> None:
        """Let so many calls pass."""
        self.calls_left = calls

    def disarm(self) -> bool:
        """Whether it has struck."""
        struck, self.calls_left = self.calls_left < 0, -1
        return struck

    def _run(self, call: Callable[[], Any]) -> Any:
        strikes = self.calls_left == 0
        self.calls_left -= self.calls_left >= 0
        if strikes and not self._after:
            raise self._error
        result = call()
        if strikes:
            raise self._error
        return result

    def create(self, path):
        return self._run(lambda: super(StrikingFiles, self).create(path))

    def write(self, fd, parts, offset):
        self._run(lambda: super(StrikingFiles, self).write(fd, parts, offset))

    def write_synced(self, fd, parts, offset):
        self._run(lambda: Files.write(self, fd, parts, offset))

    def sync(self, fd):
        self._run(lambda: None)

    def sync_folder(self, path):
        self._run(lambda: None)

    def replace(self, source, target):
        self._run(lambda: super(StrikingFiles, self).replace(source, target))

    def remove(self, path):
        self._run(lambda: super(StrikingFiles, self).remove(path))


STRIKES = {
    "fails": (OSError(errno.EIO, "bad disk"), False),
    "fails after all": (OSError(errno.EIO, "bad disk"), True),
    "is interrupted": (KeyboardInterrupt(), False),
    "is interrupted when it is done": (KeyboardInterrupt(), True),
}


def write_a_large_one(store: LogBackend) -> None:
    put(store, large=bytes(3500))  # begins another segment


@pytest.mark.parametrize("strike", STRIKES.values(), ids=STRIKES)
@pytest.mark.parametrize("act", (write_a_large_one, LogBackend.compact))
def test_whatever_call_fails_or_is_interrupted_later_writes_are_kept(tmp_path, monkeypatch, strike, act):
    monkeypatch.setattr(Background, "due", lambda self: False)  # nobody else shall call
    for calls in range(100):
        root, files = tmp_path / str(calls), StrikingFiles(*strike)
        with LogBackend(root, LogOptions(segment=4096), files) as store:
            put(store, a=b"dead" * 50, deleted=b"x", stays=b"stays")
            batch = Batch({id_of("a"): b"1"})
            batch.delete(id_of("deleted"))
            store.write(batch)
            files.arm(calls)
            with suppress(Unavailable, KeyboardInterrupt):
                act(store)
            struck = files.disarm()
            put(store, small=b"acknowledged")
            expected = {"a": b"1", "deleted": None, "stays": b"stays", "small": b"acknowledged"}
            assert {name: get(store, name) for name in expected} == expected, calls
            copy = tmp_path / f"killed {calls}"
            shutil.copytree(root, copy)
            store.compact()
            assert {name: get(store, name) for name in expected} == expected, calls
            assert files_of(root) <= 9, f"{calls}: what failed is never cleared away"
        for left in (root, copy):
            for index in (*left.glob("*/*.index"), None):
                with LogBackend(left) as store:
                    assert {name: get(store, name) for name in expected} == expected, (calls, left)
                    assert list(store.verify()) == [] or index is None
                if index is not None:
                    index.unlink()
        if not struck:
            return
    pytest.fail("there is no end to it")


def test_a_pass_on_a_disk_that_stays_full_does_not_fill_it_further(tmp_path, monkeypatch):
    monkeypatch.setattr(Background, "due", lambda self: False)
    files = FailingFiles()
    with LogBackend(tmp_path / "store", LogOptions(segment=4096), files) as store:
        for turn in range(6):
            put(store, **{f"k{turn}": bytes(1500), "dead": bytes(1500)})
        before = files_of(tmp_path / "store")
        files.fail("replace", errno.ENOSPC, times=1000)
        for _ in range(10):
            with pytest.raises(Unavailable):
                store.compact()
        assert files_of(tmp_path / "store") <= before + 8, "each pass leaves its files behind"
        files.times = 0
        store.compact()
        assert files_of(tmp_path / "store") <= before + 1
        assert get(store, "k3") == bytes(1500)


def test_a_claim_on_a_disk_that_is_full_keeps_nothing_open_or_locked(tmp_path):
    files = FailingFiles()
    with LogBackend(tmp_path / "store", None, files) as store:
        put(store, a=b"1")
    for method in ("create", "write_synced", "sync_folder", "replace", "sign"):
        files.fail(method, errno.ENOSPC, times=1000)
        with LogBackend(tmp_path / "store", None, files) as store, pytest.MonkeyPatch.context() as patch:
            patch.setattr(claim, "_sign", lambda fd: files._strike("sign"))
            open_files = len(os.listdir("/proc/self/fd"))
            for _ in range(10):
                with pytest.raises(Unavailable):
                    put(store, a=b"2")
            assert len(os.listdir("/proc/self/fd")) <= open_files + 2, method
            files.times = 0
            put(store, a=method.encode())
            assert get(store, "a") == method.encode()
    assert len(list((tmp_path / "store").glob("writer-*"))) == 1


def test_what_unsynced_writes_were_lost_leaves_no_trace_in_the_index(tmp_path):
    files = FailingFiles()
    store = LogBackend(tmp_path, LogOptions(sync="none", sync_interval=600), files)
    put(store, old=b"durable")
    store._log._writing.appender.sync()
    for turn in range(1500):  # so many that closing would write an index file
        put(store, **{f"k{turn}": b"", "old": b"%d" % turn})
    files.fail("write", errno.EIO)
    with pytest.raises(Unavailable):
        put(store, large=bytes(2 << 20))
    with pytest.raises(Unavailable, match="open the log again"):
        store.compact()
    store.close()
    with LogBackend(tmp_path) as store:
        assert [get(store, "old"), get(store, "k7")] == [b"durable", None]
        assert list(store.verify()) == []


def test_where_unsynced_writes_were_lost_every_later_write_fails(tmp_path):
    files = FailingFiles()
    with LogBackend(tmp_path, LogOptions(sync="none", sync_interval=600), files) as store:
        put(store, a=b"1")
        files.fail("write", errno.EIO)
        with pytest.raises(Unavailable):
            put(store, b=bytes(2 << 20))  # more than the buffer takes
        with pytest.raises(Unavailable, match=r"are lost .*: open the log again"):
            put(store, c=b"3")
        assert get(store, "a") == b"1"
    with LogBackend(tmp_path) as store:
        put(store, a=b"2")
        assert get(store, "a") == b"2"


def test_a_full_disk_is_an_error_and_writing_goes_on_when_there_is_space_again(tmp_path):
    program = f"""
import resource
import safekeeper
from safekeeper import Batch, CheckpointId, Unavailable
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
key = CheckpointId("group", b"a")
with safekeeper.open("log://{tmp_path}/store") as store:
    store.write(Batch({{key: b"before"}}))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        store.write(Batch({{key: bytes(1_000_000)}}))
    except Unavailable:
        print("refused")
    print(store.read([key]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.write(Batch({{key: b"after"}}))
with safekeeper.open("log://{tmp_path}/store") as store:
    print(store.read([key]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["refused", "[b'before']", "[b'after']"]


# --- what is left behind ----------------------------------------------------------------------------------------------


def files_of(root: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(root))


@pytest.mark.crash
def test_a_log_opened_and_killed_a_thousand_times_keeps_a_bounded_number_of_files(tmp_path):
    most = 0
    for turn in range(1000 if LONG else 100):
        store = LogBackend(tmp_path / "store", None, QuickFiles())
        put(store, **{f"k{turn % 10}": b"%d" % turn})
        kill(store)
        most = max(most, files_of(tmp_path / "store"))
    assert most <= 16
    with LogBackend(tmp_path / "store") as store:
        assert get(store, f"k{turn % 10}") == b"%d" % turn


def test_a_log_overwritten_a_hundred_times_its_size_keeps_a_bounded_size(tmp_path):
    live = {f"k{n}": bytes([n]) * 1000 for n in range(64)}
    cold = {f"cold{n}": bytes([n]) * 1000 for n in range(64)}
    most = 0
    with LogBackend(tmp_path / "store", LogOptions(segment=65536), QuickFiles()) as store:
        put(store, **cold)
        for turn in range(100):
            for start in range(0, 64, 8):
                put(store, **dict(list(live.items())[start : start + 8]))
            if turn >= 20:
                most = max(most, store.stats().bytes_stored)
        stored, files = store.stats().bytes_stored, files_of(tmp_path / "store")
        assert {name: get(store, name) for name in cold} == cold
    size = 128 * 1000
    assert stored >= size
    assert most <= 8 * size, f"{most / size:.1f} times the live size"
    assert files <= 16
    print(f"space amplification {stored / size:.2f}, at most {most / size:.2f}")


def test_a_deleted_id_does_not_come_back_from_an_old_segment_when_its_tombstone_is_compacted(tmp_path):
    root, options = tmp_path / "store", LogOptions(segment=4096)
    with LogBackend(root, options, QuickFiles()) as store:
        put(store, victim=b"old", **{f"stay{n}": bytes(400) for n in range(8)})  # stays where it is: mostly live
        put(store, filler=bytes(400))
        delete = Batch()
        delete.delete(id_of("victim"))
        store.write(delete)
        (segment_of_tombstone,) = store._log.root.own.state.segments.keys() - {1}
        for turn in range(100):
            put(store, filler=bytes([turn]) * 400)
        wait_for_a_pass(store)
        assert 1 in store._log.root.own.state.segments
        assert segment_of_tombstone not in store._log.root.own.state.segments
    without_index(root)
    with LogBackend(root, options) as store:
        assert get(store, "victim") is None, "the tombstone was dropped before what it hides"
        assert get(store, "filler") == bytes([99]) * 400


def test_a_value_written_while_compaction_copies_the_old_one_is_the_one_that_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(Background, "due", lambda self: False)  # no other pass shall tidy up after this one
    root, options = tmp_path / "store", LogOptions(segment=4096)
    with LogBackend(root, options, QuickFiles()) as store:
        put(store, a=b"old", dead=bytes(3000))
        put(store, dead=bytes(3000))
        put(store, dead=bytes(3000))
        turns = iter([{"a": b"new"}, {"a": b"newest"}, {}])

        def meanwhile(copied: int) -> None:
            for values in turns:  # each begins another segment
                put(store, **values, filler=bytes(3000))

        store._log._writing.background._compactor.run(meanwhile, everything=True)
        assert get(store, "a") == b"newest"
    without_index(root)
    for turn in range(2):  # after the first, there is a manifest that names no index
        with LogBackend(root, options) as store:
            assert get(store, "a") == b"newest"
            put(store, turn=b"%d" % turn)


def without_index(root: Path) -> None:
    """Leave only the segments to tell what is there."""
    indexes = list(root.glob("*/*.index"))
    assert indexes
    for index in indexes:
        index.unlink()


def test_compaction_gives_back_files_that_nobody_reads_any_more_and_no_others(tmp_path):
    with LogBackend(tmp_path / "store", LogOptions(segment=4096), QuickFiles()) as store:
        put(store, **{f"k{n}": bytes(100) for n in range(20)})
        store.compact()
        listing = store.keys("group")
        seen = {next(listing)}
        put(store, **{f"k{n}": bytes(50) for n in range(20)})
        store.compact()
        open_files = len(os.listdir("/proc/self/fd"))
        for turn in range(20):
            put(store, **{f"k{n}": bytes(turn) for n in range(20)})
            store.compact()
            assert get(store, "k0") == bytes(turn)
        assert len(os.listdir("/proc/self/fd")) <= open_files + 2
        assert seen | set(listing) == {b"k%d" % n for n in range(20)}, "a listing lost its files"


def test_tombstones_that_hide_nothing_any_more_are_dropped(tmp_path):
    with LogBackend(tmp_path / "store", LogOptions(segment=16384), QuickFiles()) as store:
        put(store, cold=b"cold")
        for turn in range(4000):
            put(store, **{f"passing{turn}": b"x" * 10})
            batch = Batch()
            batch.delete(id_of(f"passing{turn}"))
            store.write(batch)
        wait_for_a_pass(store)
        assert store.stats().details["indexed"] < 3000
        store.compact()
        assert store.stats().details["indexed"] == 1
        assert get(store, "cold") == b"cold"


def wait_for_a_pass(store: LogBackend) -> None:
    """Let the pass that is running or due come to its end."""
    background = store._log._writing.background
    while background.due() or background._wake.is_set():
        time.sleep(0.01)
    with background._compactor._running:
        assert background.problem == ""


def test_a_pass_that_outlives_its_store_leaves_the_next_writer_alone(tmp_path):
    root = tmp_path / "store"
    store = LogBackend(root)
    put(store, a=b"1", dead=bytes(1000))
    put(store, dead=b"")
    compactor = store._log._writing.background._compactor
    with pytest.raises(Closed):
        compactor.run(lambda _: store.close(), everything=True)
    with LogBackend(root) as store:
        put(store, b=b"2")
        assert [get(store, "a"), get(store, "b")] == [b"1", b"2"]
        assert list(store.verify()) == []


def test_compaction_of_everything_leaves_the_live_values_and_nothing_else(tmp_path):
    with LogBackend(tmp_path / "store") as store:
        columns = Columns.of("group", [b"c%d" % n for n in range(100)], [b"column" * n for n in range(100)])
        store.write(Batch.of_columns(columns))
        put(store, c5=b"newer", big=bytes(100_000))
        put(store, big=b"small")
        done = store.compact()
        assert done.bytes_after < done.bytes_before
        assert store.stats().ids == 101
        expected = {b"c%d" % n: b"column" * n for n in range(100)} | {b"c5": b"newer", b"big": b"small"}
        found = {key: get(store, key.decode()) for key in store.keys("group")}
        assert found == expected
    with LogBackend(tmp_path / "store") as store:
        assert {key: get(store, key.decode()) for key in store.keys("group")} == expected


def test_a_damaged_record_is_not_lost_by_compaction(tmp_path):
    root = tmp_path / "store"
    with LogBackend(root) as store:
        put(store, a=b"a" * 100, b=b"1")
        put(store, b=b"2")
    (segment,) = root.glob("*/*.segment")
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"a" * 100, b"a" * 99 + b"x"))
    with LogBackend(root) as store, pytest.raises(Corruption):
        store.compact()
    segment.write_bytes(data)
    with LogBackend(root) as store:
        assert get(store, "a") == b"a" * 100
