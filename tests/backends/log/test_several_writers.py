"""Several processes on one root: what they see of each other, and what they leave behind."""

import fcntl
import itertools
import json
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Columns, Conflict, Corruption, Unavailable
from safekeeper.backend import Damage, Scope
from safekeeper.backends.log import abandoned, recovery, verify
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.background import Background
from safekeeper.backends.log.claim import Claims
from safekeeper.backends.log.compaction import LogCompactor
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.scan import blocks_behind
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.log.writer_folder import WriterFolder
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.backends.shared.records import BlockHeader
from safekeeper.testing.peer import PATIENCE, Peer

from .command import run
from .history import FOREVER, Operation, problem
from .inside import (
    claim,
    compact,
    compact_and_stop,
    compact_and_stop_while_copying,
    fork_a_child_that_stays,
    steps_of_a_write,
    write_and_stop,
)
from .killing import open_as_another_process
from .power import QuickFiles
from .stopping import lose_the_lock_of, wait_until_stopped

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def id_of(name: object) -> CheckpointId:
    return CheckpointId("group", str(name).encode())


def put(store: LogBackend | Peer, **values: bytes) -> None:
    store.write(Batch({id_of(name): value for name, value in values.items()}))


def delete(store: LogBackend | Peer, *names: str) -> None:
    batch = Batch()
    for name in names:
        batch.delete(id_of(name))
    store.write(batch)


def get(store: LogBackend | Peer, name: str) -> bytes | None:
    return store.read([id_of(name)])[0]


def folders_of(root: Path) -> int:
    return len(list(root.glob("writer-*")))


def files_of(root: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(root))


# --- who has what -----------------------------------------------------------------------------------------------------


def test_everybody_on_the_host_may_write_unless_writes_wait_in_a_buffer(tmp_path):
    scopes = [LogBackend(tmp_path, LogOptions(sync=sync)).scope for sync in ("always", "interval", "none")]
    assert scopes == [Scope.HOST, Scope.PROCESS, Scope.PROCESS]
    with safekeeper.open(f"log://{tmp_path}/store?scope=network") as store:
        assert store.scope is Scope.NETWORK


def test_each_writer_has_a_folder_and_those_of_the_dead_are_used_again(tmp_path):
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    for turn in range(2):
        with Peer(url) as one, Peer(url) as other, LogBackend(root) as store:
            for handle, name in ((one, "one"), (other, "other"), (store, "ours")):
                put(handle, **{name: b"%d" % turn})
            assert folders_of(root) == 3
            for handle in (one, other, store):
                assert [get(handle, name) for name in ("one", "other", "ours")] == [b"%d" % turn] * 3
            one._process.kill()


@pytest.mark.parametrize("writers", [1, 2])
@pytest.mark.parametrize("reads_only", [True, False])
def test_a_single_read_sees_what_others_have_just_done(tmp_path, writers, reads_only):
    url = f"log://{tmp_path}/store?segment=4K"
    with Peer(url) as one, Peer(url) as other, safekeeper.open(url) as store:
        peers = [one, other][:writers]
        if not reads_only:
            put(store, k=b"ours")
        for turn in range(12):
            peer = peers[turn % writers]
            put(peer, k=b"%d" % turn, **{f"k{turn}": bytes(500)})
            assert get(store, "k") == b"%d" % turn
            assert get(store, f"k{turn}") == bytes(500), "an id that one folder knows"
            delete(peer, f"k{turn}")
            assert get(store, f"k{turn}") is None
            if not reads_only and turn % 3 == 0:
                put(store, k=b"ours")
                assert get(store, "k") == b"ours"
            if turn % 5 == 4:
                peer.call(compact)  # the files that were read are gone
                delete(peer, "k")
                assert get(store, "k") is None
        one._process.kill()
        one._process.wait()
        put(store, k=b"taken over")  # perhaps in the folder of the one that was killed
        assert get(store, "k") == b"taken over"


def test_a_deleted_id_stays_deleted_whoever_compacts_and_in_whatever_order(tmp_path):
    root, url = tmp_path / "store", f"log://{tmp_path}/store?segment=4K"
    for order in ("ours first", "theirs first"):
        with Peer(url) as peer, LogBackend(root, LogOptions(segment=4096)) as store:
            put(peer, **{f"k{n}": bytes(200) for n in range(30)})
            delete(store, *(f"k{n}" for n in range(30)))
            passes = [store.compact, lambda peer=peer: peer.call(compact)]
            for run_pass in passes if order == "ours first" else reversed(passes):
                run_pass()
                assert [get(handle, "k7") for handle in (store, peer)] == [None, None]
                assert list(store.keys("group")) == peer.keys("group") == []
            for run_pass in passes * 2:
                run_pass()
            assert store.stats().details["indexed"] <= 30, "tombstones of what is gone stay"
    for index in root.glob("*/*.index"):
        index.unlink()
    with LogBackend(root) as store:
        assert list(store.keys("group")) == []


def test_what_one_writes_and_another_deletes_gives_its_space_back(tmp_path):
    root, url = tmp_path / "store", f"log://{tmp_path}/store?segment=64K"
    with Peer(url) as peer, LogBackend(root, LogOptions(segment=65536)) as store:
        most = 0
        for turn in range(40):
            names = [f"{turn}-{n}" for n in range(20)]
            put(peer, **dict.fromkeys(names, os.urandom(1000)))
            delete(store, *names)
            if turn % 8 == 7:
                peer.call(compact)
                store.compact()
                most = max(most, store.stats().bytes_stored)
        assert store.stats().ids == 0
        assert most < 400_000, "800,000 bytes were written, and all of them deleted"


def test_what_was_never_answered_is_seen_by_all_or_by_nobody(tmp_path):
    """Neither by those who have the log open nor by those who open it, as long as its writer lives; or by both, from
    when somebody has taken the folder over: one would read the new value, then the other the old one."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    came_late = 0
    with LogBackend(root) as store:
        for step in itertools.count():
            put(store, a=b"old")
            with Peer(url) as peer, ThreadPoolExecutor(1) as pool:
                put(peer, b=b"%d" % step)
                assert get(store, "b") == b"%d" % step
                writing = pool.submit(peer.call, write_and_stop, {id_of("a"): b"new"}, step)
                wait_until_stopped(peer._process.pid)
                seen = get(store, "a")
                with Peer(url) as opened:
                    assert get(opened, "a") == seen, f"stopped before step {step}"
                peer._process.kill()
                assert writing.exception(PATIENCE) is not None
            assert get(store, "a") == seen, f"killed before step {step}"
            with Peer(url) as opened:
                after = get(opened, "a")  # it takes over what has no writer and has a block that was not answered
                assert after in (b"new", seen)
                assert get(store, "a") == after, f"killed before step {step}"
                put(opened, b=b"")
                assert get(opened, "a") == get(store, "a") == after
            if seen == b"new":  # from here on it was said
                break
            came_late += after == b"new"
    assert came_late, "no step had a block that was whole and not answered"


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_what_a_claim_brings_to_light_all_see_from_the_same_moment_on(tmp_path, monkeypatch):
    """Those who have the log open, and those who open it, while the claim is stopped in any step."""
    monkeypatch.setattr(abandoned, "_PATIENCE", 0.05)
    with Peer(f"log://{tmp_path}/pilot") as killed, Peer(f"log://{tmp_path}/pilot") as claimer:
        put(killed, a=b"old")
        before_publish = killed.call(steps_of_a_write, {id_of("a"): b"new"}).index("publish")
        killed._process.kill()
        killed._process.wait()
        steps = claimer.call(steps_of_a_write, {id_of("b"): b""})
    seen, refused = set(), 0
    for step in range(0, len(steps), 1 if LONG else 4):
        root, url = tmp_path / f"{step}", f"log://{tmp_path}/{step}"
        with Peer(url) as killed, Peer(url) as claimer, Peer(url) as store:
            put(killed, a=b"old")
            assert get(store, "a") == b"old"
            with ThreadPoolExecutor(2) as pool:
                writing = pool.submit(killed.call, write_and_stop, {id_of("a"): b"new"}, before_publish)
                wait_until_stopped(killed._process.pid)
                killed._process.kill()
                assert writing.exception(PATIENCE) is not None
                claiming = pool.submit(claimer.call, write_and_stop, {id_of("b"): b""}, step)
                wait_until_stopped(claimer._process.pid)
                first, second = get_or_refusal(root), get(store, "a")
                os.kill(claimer._process.pid, signal.SIGCONT)
                claiming.result(PATIENCE)
            assert first == second or (first, second) == ("refused", b"old"), (
                f"stopped before {steps[step]}, step {step}"
            )
            seen.add(first)
            refused += first == "refused"
            assert get(store, "a") == get_or_refusal(root) == b"new"
    assert b"new" in seen
    assert refused < len(steps) // 2, "who opens the log has to wait only until the claim has shown what it found"


def get_or_refusal(root: Path) -> bytes | str | None:
    """Read with a handle that has just come. It does not know whether what it finds is answered, and says so."""
    with LogBackend(root) as fresh:
        try:
            return get(fresh, "a")
        except Unavailable as error:
            return "refused" if "has been claiming a folder" in str(error) else str(error)


def test_a_pass_that_is_stopped_and_taken_over_finds_a_conflict_and_no_damage(tmp_path):
    root, url = tmp_path / "store", f"log://{tmp_path}/store?segment=4K"
    with Peer(url) as peer, LogBackend(root, LogOptions(segment=4096)) as store, ThreadPoolExecutor(1) as pool:
        for turn in range(2):
            for n in range(20):
                put(peer, **{f"k{n}": b"%d" % turn + bytes(900), f"only {turn} {n}": bytes(900)})
        compacting = pool.submit(peer.call, compact_and_stop_while_copying)
        wait_until_stopped(peer._process.pid)
        lose_the_lock_of(peer._process.pid, root)
        store.compact()  # takes over what has no writer
        os.kill(peer._process.pid, signal.SIGCONT)
        assert isinstance(compacting.exception(PATIENCE), Conflict)
        assert [get(handle, "k7") for handle in (store, peer)] == [b"1" + bytes(900)] * 2
        assert list(store.verify()) == []


def test_a_reader_whose_files_go_looks_again_also_if_another_thread_has_caught_up_already(tmp_path, monkeypatch):
    root, url = tmp_path / "store", f"log://{tmp_path}/store?segment=4K"
    with Peer(url) as peer, LogBackend(root, LogOptions(segment=4096)) as store:
        put(store, ours=b"")
        put(peer, a=b"1", b=bytes(4096))
        give_up, pin, passed = Root._has_moved_on, WriterFolder.pin_ids, []

        def compact_before(self, ids, most):
            if not passed:
                passed.append("compacted")
                delete(peer, "b")
                peer.call(compact)
            return pin(self, ids, most)

        def catch_up_before(self, look):
            passed.append("failed")
            other = threading.Thread(target=self.refresh)
            other.start()
            other.join()
            return give_up(self, look)

        monkeypatch.setattr(WriterFolder, "pin_ids", compact_before)
        monkeypatch.setattr(Root, "_has_moved_on", catch_up_before)
        assert [get(store, name) for name in ("a", "b")] == [b"1", None]
        assert passed == ["compacted", "failed"]


def test_a_read_finds_what_this_process_takes_over_and_drops_meanwhile(tmp_path, monkeypatch):
    """Between the look whether the folders are those that are known, and their use."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with LogBackend(root) as store, ThreadPoolExecutor(1) as pool:
        put(store, ours=b"")
        with Peer(url) as killed:
            put(killed, theirs=b"1")
            killed._process.kill()
            killed._process.wait()
        assert get(store, "theirs") == b"1"
        is_removed, drop = Claims.is_removed, Root.drop
        looked, dropped, go = threading.Event(), threading.Event(), threading.Event()

        def look(self: Claims) -> bool:
            if not looked.is_set():
                looked.set()
                pool.submit(store.compact)
                assert dropped.wait(PATIENCE)
            return is_removed(self)

        def drop_and_wait(self: Root, folder: WriterFolder) -> None:
            drop(self, folder)
            dropped.set()
            assert go.wait(PATIENCE)

        monkeypatch.setattr(Claims, "is_removed", look)
        monkeypatch.setattr(Root, "drop", drop_and_wait)
        try:
            assert get(store, "theirs") == b"1"
        finally:
            go.set()


def test_a_status_that_may_be_old_is_not_gone_by_while_the_new_one_is_opened(tmp_path, monkeypatch):
    with Peer(f"log://{tmp_path}") as peer, LogBackend(tmp_path) as store:
        put(peer, a=b"1")
        assert get(store, "a") == b"1"
        (folder,) = store._shared(create=False).root.folders()
        assert folder.is_caught_up()
        of_reader, seen = WriterStatus.of_reader, []

        def look_before(path: Path) -> WriterStatus | None:
            with folder.lock:
                seen.append((folder.is_caught_up(), folder.is_current()))
            return of_reader(path)

        monkeypatch.setattr(WriterStatus, "of_reader", look_before)
        folder.forget_status()
        folder.refresh()
        assert seen == [(False, False)]
        assert folder.is_caught_up()


def test_a_folder_that_is_taken_over_meanwhile_is_no_obstacle_to_counting_bytes(tmp_path):
    with Peer(f"log://{tmp_path}") as peer, LogBackend(tmp_path) as store:
        put(peer, a=b"1")
        folders = store._shared(create=False).root.folders()
        (tmp_path / "writer-1").rename(tmp_path / "writer-2")
        assert [each.bytes_stored() for each in folders] == [0]


def test_a_tombstone_is_kept_for_a_writer_that_has_not_finished(tmp_path):
    """The put has chosen its sequence before the delete came, and is written after the tombstone might have gone."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as peer, LogBackend(root) as store:
        put(store, a=b"first")  # the higher epoch is that of the peer
        put(peer, b=b"")
        for step in range(1, 4):
            writing = threading.Thread(target=peer.call, args=(write_and_stop, {id_of("a"): b"late"}, step))
            writing.start()
            wait_until_stopped(peer._process.pid)
            for _ in range(3):
                delete(store, "a")
            store.compact()
            assert get(store, "a") is None
            os.kill(peer._process.pid, signal.SIGCONT)
            writing.join()
            seen = get(store, "a")
            store.compact()
            assert get(store, "a") == seen == get(peer, "a"), "what was gone has come back without a write"


@pytest.mark.parametrize("manifest", (0, 1), ids=("the one that rotates", "the one that compacts"))
def test_a_tombstone_is_kept_until_what_it_hides_is_gone_for_good(tmp_path, manifest):
    """A manifest without the put is there for all to see, but not yet synced: a power cut brings the put back."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as peer, LogBackend(root) as store:
        put(peer, a=b"deleted", b=b"1")
        delete(store, "a")
        (theirs,) = (lock.parent for lock in root.glob("*/lock") if f"process {peer._process.pid} " in lock.read_text())
        shutil.copytree(theirs, tmp_path / "before")
        compacting = threading.Thread(target=peer.call, args=(compact_and_stop, manifest))
        compacting.start()
        wait_until_stopped(peer._process.pid)
        fresh = read_anew(store, "a")
        store.compact()
        shutil.copytree(root, tmp_path / "after the power cut")
        os.kill(peer._process.pid, signal.SIGCONT)
        compacting.join()
        assert fresh is get(store, "a") is None
    shutil.rmtree(tmp_path / "after the power cut" / theirs.name)
    shutil.copytree(tmp_path / "before", tmp_path / "after the power cut" / theirs.name)
    with LogBackend(tmp_path / "after the power cut") as store:
        assert [get(store, "a"), get(store, "b")] == [None, b"1"], "a deleted id is back"


def read_anew(store: LogBackend, name: str) -> bytes | None:
    """Read with all folders loaded from their files again, as a process does that has just come."""
    for other in store._log.root.folders():
        other._loaded = False
    return get(store, name)


# --- beside live writers ----------------------------------------------------------------------------------------------


def test_stat_verify_and_compact_work_beside_live_writers(tmp_path):
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as dead:
        put(dead, **{f"dead{n}": bytes(1000) for n in range(50)})
        dead._process.kill()
    with Peer(url) as peer, LogBackend(root) as store:
        put(peer, live=b"theirs")  # in the folder of the dead one
        put(store, ours=b"ours", **{f"dead{n}": b"" for n in range(40)})
        with Peer(url) as another:
            put(another, **{f"gone{n}": bytes(1000) for n in range(50)})
            another._process.kill()
        delete(store, *(f"gone{n}" for n in range(50)))
        stat = json.loads(run("stat", url, "--json").stdout)
        assert (stat["ids"], stat["writers"], stat["scope"]) == (52, 3, "host")
        before, after = json.loads(run("compact", url, "--json").stdout).values()
        assert before - after > 40_000, "what the dead one wrote was deleted since"
        assert run("verify", url).returncode == 0
        for handle in (peer, store):
            assert [get(handle, name) for name in ("live", "ours", "gone1", "dead45")] == [
                b"theirs",
                b"ours",
                None,
                bytes(1000),
            ]
            put(handle, more=b"on")


@pytest.mark.parametrize("look", (lambda store: store.read([id_of("a")]), lambda store: list(store.verify())))
def test_a_writer_that_goes_on_while_its_tail_is_read_does_not_look_damaged(tmp_path, monkeypatch, look):
    """Between the walk to the end and the search for what confirms more, blocks appear that confirm each other."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as peer:
        put(peer, a=b"1")

        def search(segment: LogSegment, offset: int) -> Iterator[tuple[int, BlockHeader]]:
            for turn in range(3):
                peer.write(Batch.of_columns(Columns.of("columns", [b"key"], [b"%d" % turn])))
            return blocks_behind(segment, offset)

        for module in (recovery, verify):
            monkeypatch.setattr(module, "blocks_behind", search)
        with LogBackend(root) as store:
            assert look(store) in ([b"1"], [])


def test_a_durable_block_that_a_reader_cannot_read_is_damage_and_not_the_end(tmp_path):
    root = tmp_path / "store"
    with Peer(f"log://{root}") as peer, LogBackend(root) as store:
        put(peer, a=b"first")
        assert get(store, "a") == b"first"
        put(peer, a=b"second" * 10)
        (path,) = root.glob("*/*.segment")
        content = path.read_bytes()
        at = content.index(b"second")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"S")
            file.flush()
            for _ in range(2):
                with pytest.raises(Corruption, match=path.name):
                    get(store, "a")
            file.seek(at)
            file.write(b"s")
        assert get(store, "a") == b"second" * 10


def test_a_folder_that_is_taken_over_while_it_is_verified_is_verified_all_the_same(tmp_path, monkeypatch):
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as one, Peer(url) as other:
        put(one, one=b"1" * 100)
        put(other, other=b"2" * 100)
    for path in root.glob("*/*.segment"):
        path.write_bytes(path.read_bytes().replace(b"2" * 100, b"2" * 99 + b"x"))
    original = verify._verify_folder

    def verify_folder(folder: Path, checked: Callable[[int], object]) -> Iterator[Damage]:
        if (root / "writer-2").exists():  # on the first call, in which nothing was read yet
            os.rename(root / "writer-2", root / "writer-3")
        return original(folder, checked)

    monkeypatch.setattr(verify, "_verify_folder", verify_folder)
    with LogBackend(root) as store:
        assert [damage.id for damage in store.verify()] == [id_of("other")]


def test_a_store_that_changes_while_it_is_salvaged_is_no_reason_to_overlook_anything(tmp_path):
    root = tmp_path / "store"
    with LogBackend(root) as store:
        put(store, a=b"1", b=b"1")
        put(store, a=b"2")
        salvaged = store.salvage()
        next(salvaged)
        store.compact()
        with pytest.raises(Unavailable, match="stop its writers and begin again"):
            list(salvaged)


def test_of_a_folder_whose_status_is_old_what_is_in_it_counts(tmp_path):
    """The status is from before a power cut, and a claim has died between the folder's new name and its new status."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as one, Peer(url) as two, Peer(url) as three:
        for handle in (one, two, three):
            put(handle, b=b"")
        old = (root / "writer-3" / "head").read_bytes()
        for turn in range(50):
            put(three, a=b"%d" % turn)
    (root / "writer-3" / "head").write_bytes(old)
    with LogBackend(root) as store, Peer(url) as peer:
        claim(store)  # that of one
        os.rename(root / "writer-3", root / "writer-9")
        peer.call(claim)  # that of two; now everybody lists the folders again
        put(store, a=b"ours")
        assert [get(store, "a"), get(peer, "a")] == [b"ours", b"ours"]


# --- the history of several processes under fire ----------------------------------------------------------------------


class Player(threading.Thread):
    """Uses a process of its own for some ids, at random, until told to stop; remembers what it did and when."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self.url, self.random, self.count = url, random.Random(name), 0
        self.histories: dict[CheckpointId, list[Operation]] = {}
        self.peer = Peer(url)
        self.stop = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.step()
        except Exception as error:
            self.error = error

    def step(self) -> None:
        id, dice = id_of(self.random.randrange(3)), self.random.random()
        self.count += 1
        operation = Operation("read" if dice < 0.5 else "write", None, time.monotonic())
        if dice > 0.6:
            operation.value = b"%s %d" % (self.name.encode(), self.count) + bytes(self.random.choice((0, 0, 3000)))
        self.histories.setdefault(id, []).append(operation)
        try:
            self.do(id, operation)
        except Conflict:
            operation.certain = False
        except (AssertionError, OSError):  # it was killed
            operation.certain, ended = False, time.monotonic()
            self.peer._process.wait()
            operation.end = ended if operation.kind == "write" else FOREVER
            self.peer = Peer(self.url)
            return
        operation.end = time.monotonic()

    def do(self, id: CheckpointId, operation: Operation) -> None:
        if operation.kind == "read":
            (operation.value,) = self.peer.read([id])
        else:
            batch = Batch()
            batch.delete(id) if operation.value is None else batch.put(id, operation.value)
            self.peer.write(batch)
        if self.random.random() < 0.03:
            self.peer.call(compact)
        if self.random.random() < 0.02:
            self.peer.call(fork_a_child_that_stays)


def disturb(player: Player, root: Path, dice: random.Random) -> None:
    """Kill a player's process, or stop it for a while; meanwhile it may lose its lock."""
    process, choice = player.peer._process, dice.random()
    if process.poll() is not None:
        return
    if choice < 0.3:
        process.kill()
        return
    process.send_signal(signal.SIGSTOP)
    if choice < 0.6:
        for lock in root.glob("*/lock"):
            with suppress(FileNotFoundError):
                if lock.read_text().startswith(f"process {process.pid} "):
                    lock.unlink()
    time.sleep(dice.random() * 0.3)
    process.send_signal(signal.SIGCONT)


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_the_history_of_processes_that_are_stopped_killed_and_forked_keeps_the_contracts_order(tmp_path):
    root, seed = tmp_path / "store", os.environ.get("SAFEKEEPER_SEED", "7")
    dice, until = random.Random(seed), time.monotonic() + (240 if LONG else 8)
    players = [Player(f"log://{root}?segment=16K", f"{seed}-{n}") for n in range(3)]
    for player in players:
        player.start()
    while time.monotonic() < until and all(player.error is None for player in players):
        time.sleep(dice.random() * 0.3)
        disturb(dice.choice(players), root, dice)
    for player in players:
        player.stop.set()
    for player in players:
        player.join()
        player.peer.close()
    for error in (player.error for player in players if player.error):
        raise error
    histories: dict[CheckpointId, list[Operation]] = {}
    with LogBackend(root) as store:
        for id in {id for player in players for id in player.histories}:
            histories[id] = [operation for player in players for operation in player.histories.get(id, [])]
            last = Operation("read", None, time.monotonic())
            (last.value,) = store.read([id])
            last.end = time.monotonic()
            histories[id].append(last)
        assert list(store.verify()) == []
    print(f"seed {seed}: {sum(map(len, histories.values()))} operations, {folders_of(root)} folders")
    for id, history in histories.items():
        assert problem(history) is None, id


# --- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_two_writers_opened_and_killed_again_and_again_keep_a_bounded_number_of_files(tmp_path):
    root, most = tmp_path / "store", 0
    for turn in range(1000 if LONG else 60):
        children = [fork_a_writer(root, f"k{turn % 10}", turn) for _ in range(2)]
        for child in children:
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
        most = max(most, files_of(root))
    assert folders_of(root) <= 3
    assert most <= 40
    with LogBackend(root) as store:
        for back in range(10):
            assert get(store, f"k{(turn - back) % 10}") == b"%d" % (turn - back)


def fork_a_writer(root: Path, name: str, turn: int) -> int:
    """A process that opens the log, writes once and is killed."""
    child = os.fork()
    if child == 0:
        try:
            put(LogBackend(root, None, QuickFiles()), **{name: b"%d" % turn})
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return child


def test_folders_with_more_segments_than_a_process_may_open_are_compacted(tmp_path, monkeypatch):
    monkeypatch.setattr(Background, "due", lambda self: False)
    root, options = tmp_path / "store", LogOptions(segment=4096)
    with LogBackend(root, options, QuickFiles()) as one:
        for turn in range(300):
            put(one, **{f"k{turn}": bytes(2000), f"dead{turn % 2}": bytes(1000)})
        with open_as_another_process(root, options, QuickFiles()) as other:
            for turn in range(0, 300, 2):
                put(other, **{f"k{turn}": bytes(2000), "filler": bytes(1000)})
            assert len(list(root.glob("*/*.segment"))) > 400
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 150, hard))
            try:
                one.compact()
                other.compact()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert one.stats().bytes_stored < 1_200_000, "half of what the first one wrote is replaced"
            assert [get(other, f"k{turn}") for turn in range(300)] == [bytes(2000)] * 300


# --- odd moments ------------------------------------------------------------------------------------------------------


def test_a_writer_killed_while_it_says_how_far_it_is_keeps_nobody_waiting(tmp_path):
    """Of a pair of words in its status only one is new."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as killed:
        put(killed, a=b"1")
        put(killed, a=b"2")
        killed._process.kill()
        killed._process.wait()
    (status,) = root.glob("*/head")
    words = bytearray(status.read_bytes())
    for pair in (16, 64):  # visible, taken
        words[pair : pair + 8] = (3).to_bytes(8, "little")
    status.write_bytes(words)
    with Peer(url) as peer, LogBackend(root) as store:
        assert [get(store, "a"), get(peer, "a")] == [b"2", b"2"]
        put(peer, b=b"theirs")
        put(store, a=b"ours")
        assert [get(peer, "a"), get(store, "b")] == [b"ours", b"theirs"]


def test_a_process_that_is_stopped_while_it_claims_stops_nobody_who_has_claimed(tmp_path):
    root, url = tmp_path / "store", f"log://{tmp_path}/store"
    with Peer(url) as peer, LogBackend(root) as store:
        put(store, a=b"1")
        claiming = open_locked(root / "claim")
        try:
            put(store, a=b"2")
            store.compact()
            assert get(peer, "a") == b"2"
        finally:
            os.close(claiming)
        put(peer, a=b"3")
        assert get(store, "a") == b"3"


def open_locked(path: Path) -> int:
    """Lock a file as another process would."""
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def test_a_claim_that_fails_leaves_nothing_locked(tmp_path, monkeypatch):
    root = tmp_path / "store"
    for turn in range(8):
        with LogBackend(root, None, QuickFiles()) as store:
            put(store, **{f"k{turn}": b""})
    with LogBackend(root, None, QuickFiles()) as store:
        with monkeypatch.context() as patch:
            patch.setattr(LogCompactor, "run", fail)
            for _ in range(3):
                with pytest.raises(Unavailable):
                    put(store, a=b"1")
        put(store, a=b"2")
        assert get(store, "a") == b"2"
    assert folders_of(root) == 1


def fail(*_: object) -> None:
    raise Unavailable("the disk is full")


def test_what_another_writer_has_replaced_but_not_synced_is_kept(tmp_path):
    """A power cut takes the newer value; then the older one must be there."""
    root = tmp_path / "store"
    with Peer(f"log://{root}?sync=none&sync-interval=0.01") as peer, LogBackend(root) as store:
        put(store, a=b"durable", b=b"1")
        put(store, b=b"2")
        put(peer, a=b"not durable")
        while get(store, "a") == b"durable":
            time.sleep(0.01)
        store.compact()
        copy = tmp_path / "after the power cut"
        shutil.copytree(root, copy)
        assert get(store, "a") == b"not durable"
        peer._process.kill()
    (theirs,) = (lock.parent for lock in copy.glob("*/lock") if f"process {peer._process.pid} " in lock.read_text())
    shutil.rmtree(theirs)
    with LogBackend(copy) as store:
        assert [get(store, "a"), get(store, "b")] == [b"durable", b"2"]
