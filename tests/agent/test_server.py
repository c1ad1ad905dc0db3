"""Many connections at once: what they share, and what one of them cannot do to the others."""

from __future__ import annotations

import re
import socket
import struct
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from safekeeper import BadId, Closed, Conflict, Corruption, SafekeeperError, TooLarge, Unavailable
from safekeeper.agent import answers, protocol, server, shares
from safekeeper.agent.budget import Budget
from safekeeper.backend import Batch, CheckpointId
from safekeeper.backends.memory import MemoryBackend
from safekeeper.integrations.filesystem.layout import VolumePath
from safekeeper.integrations.filesystem.volume import FileVolumes, VolumeWriter
from safekeeper.keeper import SafeKeeper

PUT, KEYS, READ, READ_FILE, DONE, ALIVE, ERROR = 1, 3, 4, 7, 65, 68, 127
MIB = 1 << 20


def field(data):
    return struct.pack("<I", len(data)) + data


def peak_bytes(pid):
    """The most memory that process *pid* ever had in use."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def test_connections_are_served_at_the_same_time(agent):
    def work(worker):
        with agent.peer() as peer:
            for i in range(20):
                assert peer.put(b"%d-%d" % (worker, i), b"%d" % i).kind == DONE
            return peer.read([b"%d-%d" % (worker, i) for i in range(20)])

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert results == [[b"%d" % i for i in range(20)]] * 8


def test_many_bodies_at_once_take_no_more_memory_than_allowed(start):
    agent = start(queue_bytes=8 * MIB)
    before = peak_bytes(agent.process.pid)
    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(lambda i: _put(agent, b"%d" % i, bytes(4 * MIB - 100)), range(12)))
    assert peak_bytes(agent.process.pid) - before < 24 * MIB


def _put(agent, key, value):
    with agent.peer() as peer:
        return peer.put(key, value).kind == DONE


def test_bodies_wait_outside_until_there_is_room_for_them(serve, connect):
    backend = Held()
    body = field(b"g") + field(b"k") + field(bytes(4 * MIB - 100))
    with serve(backend, queue_bytes=8 * MIB):
        peers = [connect() for _ in range(12)]
        frames = [peer.frame(PUT, i, body) for i, peer in enumerate(peers)]
        for peer, frame in zip(peers[:2], frames, strict=False):
            peer.send(frame)
        sent = [_send_what_is_taken(peer, frame) for peer, frame in zip(peers[2:], frames[2:], strict=True)]
        assert max(sent) < len(body) / 2
        backend.let_go.set()
        for peer, frame, done in zip(peers[2:], frames[2:], sent, strict=True):
            threading.Thread(target=peer.send, args=(frame[done:],)).start()
        for peer in peers:
            assert peer.reply().kind == DONE
            peer.socket.close()


def _send_what_is_taken(peer, data):
    """How many bytes of *data* the other side takes when nobody waits for it longer than a moment."""
    peer.socket.settimeout(0.2)
    sent = 0
    try:
        while sent < len(data):
            sent += peer.socket.send(data[sent : sent + 65536])
    except TimeoutError:
        pass
    peer.socket.settimeout(60)
    return sent


def test_values_are_read_only_when_there_is_room_for_them(start):
    agent = start(queue_bytes=8 * MIB)
    value = bytes(8 * MIB)
    with agent.peer() as peer:
        peer.put(b"k", value)
    before = peak_bytes(agent.process.pid)
    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(lambda _: _read(agent, value), range(12)))
    assert peak_bytes(agent.process.pid) - before < 32 * MIB


def _read(agent, value):
    with agent.peer() as peer:
        return peer.read([b"k"]) == [value]


def test_a_body_over_the_whole_budget_is_admitted_alone(start):
    agent = start(queue_bytes=1)
    with agent.peer() as one, agent.peer() as other:
        assert one.put(b"a", bytes(MIB)).kind == DONE
        assert other.read([b"a"]) == [bytes(MIB)]


def test_the_first_to_wait_for_room_is_the_first_to_get_it():
    budget, order = Budget(10), []

    def take(size):
        with budget.room(size):
            order.append(size)

    with budget.room(10):
        threads = []
        for size in (9, 1, 8):
            threads.append(threading.Thread(target=take, args=(size,)))
            threads[-1].start()
            while len(budget._waiting) < len(threads):
                pass
    for thread in threads:
        thread.join()
    assert order == [9, 1, 8]


def test_whose_owner_holds_least_comes_first():
    budget, order = Budget(100), []

    def take(size, owner):
        with budget.room(size, owner):
            order.append(owner)
            threading.Event().wait(0.01)

    threads = []
    with budget.room(60, b"a"), budget.room(10, b"b"), budget.room(30):
        for size, owner in ((10, b"a"), (10, b"b"), (10, b"c")):
            threads.append(threading.Thread(target=take, args=(size, owner)))
            threads[-1].start()
            while len(budget._waiting) < len(threads):
                pass
        assert budget._next().owner == b"c"
    for thread in threads:
        thread.join()
    assert sorted(order) == [b"a", b"b", b"c"]


def test_a_query_that_fills_the_queue_leaves_room_for_another(serve, connect):
    backend = Held()

    def body(query):
        return field(b"spark/" + query.encode() + b"/0/0/default") + field(b"k") + field(bytes(2 * MIB - 200))

    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    with serve(backend, queue_bytes=8 * MIB):
        peers = [connect() for _ in range(5)]
        frames = [peer.frame(PUT, i, body(other if i == 4 else one)) for i, peer in enumerate(peers)]
        for peer, frame in zip(peers[:3], frames, strict=False):
            peer.send(frame)
        fourth = _send_what_is_taken(peers[3], frames[3])
        assert fourth < MIB  # it would fit, but that would be all
        assert _send_what_is_taken(peers[4], frames[4]) == len(frames[4])
        backend.let_go.set()
        threading.Thread(target=peers[3].send, args=(frames[3][fourth:],)).start()
        for peer in peers:
            assert peer.reply().kind == DONE
            peer.socket.close()


def of_state(query):
    """A request that reads a value of a query's state."""
    return READ, field(b"spark/" + query.encode() + b"/0/0/default") + struct.pack("<I", 1) + field(b"k")


def of_files(query):
    """One that reads a part of a file in a query's checkpoint."""
    path = f"volume/{query}/state/0/0/1.zip"
    return READ_FILE, field(path.encode()) + bytes(16) + struct.pack("<I", 0)


@pytest.mark.parametrize("request_of", (of_state, of_files))
def test_a_query_that_reads_as_much_as_there_is_room_for_leaves_some_for_another(serve, connect, request_of):
    """Values of 2 MiB, with room for four of them: one query reads three at a time, and another one its own at once."""
    backend = HeldValues()
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    files = FileVolumes(backend, part_bytes=2 * MIB)
    for query in (one, other):
        backend.write(Batch({CheckpointId(f"spark/{query}/0/0/default", b"k"): bytes(MIB)}))
        path = VolumePath.parse(f"volume/{query}/state/0/0/1.zip")
        with VolumeWriter(files, path) as file:
            file.write(bytes(2 * MIB))
            files.put({path: file.entry})
    with serve(backend, queue_bytes=8 * MIB):
        peers = [connect() for _ in range(5)]
        for _ in range(8):  # until it is known how large values are: room is taken for twice the largest
            peers[0].ask(*of_state(one))
        backend.let_go.clear()
        for number, peer in enumerate(peers[:4]):
            peer.send(peer.frame(request_of(one)[0], number, request_of(one)[1]))
        backend.wait_until_under_way(3)
        threading.Event().wait(0.2)
        assert backend.under_way == 3
        peers[4].send(peers[4].frame(request_of(other)[0], 4, request_of(other)[1]))
        backend.wait_until_under_way(4)
        backend.let_go.set()
        for peer in peers:
            while (reply := peer.reply()).kind != DONE:
                assert reply.kind != ERROR
            peer.socket.close()


@pytest.mark.parametrize(
    ("kind", "text", "owner"),
    (
        (PUT, b"spark/7f3c/0/1/left-keyWithIndexToValue", b"7f3c"),
        (KEYS, b"spark/7f3c/0/1/default", b"7f3c"),
        (READ, b"words", b""),
        (READ, b"spark", b""),
        (READ_FILE, b"main/counts/offsets/17", b"main/counts"),
        (READ_FILE, b"main/counts/state/0/1/default/5.delta", b"main/counts"),
        (READ_FILE, b"main/counts/state", b"main/counts"),
        (READ_FILE, b"main/state/counts/state/0/1/5.delta", b"main/state/counts"),
        (READ_FILE, b"main/counts/metadata", b"main/counts"),
        (READ_FILE, b"main/other/file", b"main/other"),
    ),
)
def test_whose_a_request_is_shows_in_how_it_begins(kind, text, owner):
    assert shares.owner_of(protocol.FrameKind(kind), field(text) + field(b"rest")) == owner


@pytest.fixture
def serve(tmp_path):
    """Serves a backend from this process."""

    @contextmanager
    def serve(backend, queue_bytes=MIB, **options):
        keeper = SafeKeeper(backend, serializer=None, overflow="block", **options)
        with keeper, server.AgentServer(keeper, f"{tmp_path}/agent.sock", queue_bytes):
            yield

    return serve


class Failing(MemoryBackend):
    """Raises *error* whatever it is asked."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    def write(self, batch):
        raise self._error

    def read(self, ids):
        raise self._error

    def keys(self, group):
        yield b"x" * (300 * 1024)
        raise self._error


class Held(MemoryBackend):
    """Writes, reads and lists only once it is let go."""

    def __init__(self):
        super().__init__()
        self.let_go = threading.Event()

    def write(self, batch):
        self.let_go.wait(60)
        return super().write(batch)

    def read(self, ids):
        self.let_go.wait(60)
        return super().read(ids)

    def keys(self, group):
        self.let_go.wait(60)
        yield from super().keys(group)


class HeldValues(MemoryBackend):
    """Reads large values only once it is let go, and counts those that are being read."""

    def __init__(self):
        super().__init__()
        self.let_go = threading.Event()
        self.let_go.set()
        self.under_way = 0
        self._changed = threading.Condition()

    def read(self, ids):
        values = super().read(ids)
        if max(len(value or b"") for value in values) >= MIB:
            with self._changed:
                self.under_way += not self.let_go.is_set()
                self._changed.notify_all()
            self.let_go.wait(60)
        return values

    def wait_until_under_way(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: self.under_way >= count, 60)


class Watched(MemoryBackend):
    """Counts the ids of each read; a read of b"meet" waits until *others* are under way at the same time."""

    def __init__(self, others=0):
        super().__init__()
        self.reads = []
        self._meeting = threading.Barrier(others + 1)

    def read(self, ids):
        self.reads.append(len(ids))
        if ids[0].key == b"meet":
            self._meeting.wait(60)
        return super().read(ids)


def test_small_values_are_read_several_at_a_time(serve, connect):
    backend = Watched()
    keys = [b"%d" % i for i in range(200)]
    with serve(backend), connect() as peer:
        for key in keys[:-1]:
            peer.put(key, key)
        assert peer.read(keys) == [*keys[:-1], None]
    assert backend.reads[0] == 1  # nothing is known yet, it might be the largest there can be
    assert max(backend.reads) == answers.READ_KEYS
    assert len(backend.reads) < 25


def test_large_values_are_read_one_at_a_time(serve, connect):
    backend = Watched()
    with serve(backend, queue_bytes=64 * MIB), connect() as peer:
        for key in (b"a", b"b", b"c"):
            peer.put(key, bytes(answers.READ_BYTES))
        assert peer.read([b"a", b"b", b"c"] * 4) == [bytes(answers.READ_BYTES)] * 12
    assert set(backend.reads) == {1}


def test_reads_go_on_at_the_same_time_once_it_is_known_how_small_the_values_are(serve, connect):
    backend = Watched(others=7)
    with serve(backend), ThreadPoolExecutor(8) as pool:
        with connect() as peer:
            peer.read([b"other"] * 40)
        peers = [connect() for _ in range(8)]
        assert list(pool.map(lambda peer: peer.read([b"meet"]), peers)) == [[None]] * 8
        for peer in peers:
            peer.socket.close()


@pytest.mark.parametrize(
    ("error", "code"),
    (
        (Unavailable("later"), 1),
        (Corruption("later"), 2),
        (Conflict("later"), 3),
        (Closed("later"), 4),
        (TooLarge("later"), 5),
        (BadId("later"), 6),
        (SafekeeperError("later"), 8),
        (ZeroDivisionError("two\nlines later"), 8),
        (OSError("later"), 8),
    ),
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_has_its_code_and_the_connection_goes_on(serve, connect, error, code):
    with serve(Failing(error), deadline=0.1), connect() as peer:
        for kind, body in (
            (PUT, field(b"g") + field(b"k") + field(b"v")),
            (READ, field(b"g") + struct.pack("<I", 1) + field(b"k")),
            (KEYS, field(b"g")),
        ):
            *_, reply = peer.ask(kind, body)
            assert reply.code == code
            assert "later" in reply.message
            assert "\n" not in reply.message


def test_a_peer_that_stalls_in_a_frame_gives_its_memory_back(serve, connect, monkeypatch):
    monkeypatch.setattr(server, "STALL_SECONDS", 1)
    with serve(MemoryBackend(), queue_bytes=1), connect() as stalled, connect() as other:
        stalled.send(stalled.frame(PUT, 7, field(b"g") + field(b"k") + field(b"v"))[:-1])
        assert other.put(b"a", b"1").kind == DONE
        assert other.keys() == [b"a"]


@pytest.mark.parametrize("bytes_first", (0, 3 * MIB), ids=("nothing yet", "some of it"))
def test_peers_that_announce_much_and_trickle_hold_up_nobody(serve, connect, bytes_first):
    """Two of them, each more than half of what the agent may hold; their bodies are never complete."""
    over = threading.Event()

    def trickle(peer):
        frame = peer.frame(PUT, 7, bytes(5 * MIB))
        peer.send(frame[: 21 + bytes_first])
        while not over.wait(0.05):
            peer.send(b"x")

    with serve(MemoryBackend(), queue_bytes=8 * MIB), connect() as one, connect() as two, connect() as other:
        threads = [threading.Thread(target=trickle, args=(peer,)) for peer in (one, two)]
        for thread in threads:
            thread.start()
        try:
            for i in range(20):
                assert other.put(b"%d" % i, bytes(MIB)).kind == DONE
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_peers_that_ask_for_much_and_do_not_take_it_hold_up_nobody(serve, connect, monkeypatch):
    monkeypatch.setattr(server, "STALL_SECONDS", 600)  # whoever waits for them runs into the test's time-out
    kind, body = READ, field(b"g") + struct.pack("<I", 1) + field(b"large")
    with serve(MemoryBackend(), queue_bytes=8 * MIB), connect() as one, connect() as two, connect() as other:
        other.put(b"large", bytes(7 * MIB))
        for peer in (one, two):
            peer.send(peer.frame(kind, 7, body))
        for _ in range(3):
            assert other.read([b"large"]) == [bytes(7 * MIB)]


def test_a_body_that_comes_slowly_arrives(serve, connect, monkeypatch):
    monkeypatch.setattr(server, "STALL_SECONDS", 10)
    value = bytes(range(256)) * 4096
    with serve(MemoryBackend()), connect() as slow, connect() as other:
        frame = slow.frame(PUT, 7, field(b"g") + field(b"k") + field(value))
        for at in range(0, len(frame), 400_000):
            slow.send(frame[at : at + 400_000])
            threading.Event().wait(1.2)
        assert slow.reply().kind == DONE
        assert other.read([b"k"]) == [value]


def test_memory_that_comes_slowly_counts_and_is_waited_for_by_nobody():
    budget = Budget(10)

    def take():
        with budget.room(1) as room:
            return room.size

    with ThreadPoolExecutor(1) as pool, budget.room(8) as slow:
        slow.resize(9, slow=True)
        with budget.room(5):  # over the limit: nothing else is under way
            waiting = pool.submit(take)
            while not budget._waiting:
                pass
            assert not waiting.done()
            slow.resize(2, slow=True)
            assert waiting.result(60) == 1


REQUESTS = {
    "put": (PUT, field(b"g") + field(b"k") + field(b"v")),
    "read": (READ, field(b"g") + struct.pack("<I", 1) + field(b"k")),
    "keys": (KEYS, field(b"g")),
}


@pytest.fixture
def hasty(monkeypatch):
    """An agent that speaks up twenty times a second, and gives a backend half a second."""
    monkeypatch.setattr(server, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(server, "STUCK_SECONDS", 0.5)


@pytest.mark.parametrize("name", REQUESTS)
def test_whoever_waits_for_a_reply_hears_that_the_request_gets_on(serve, connect, hasty, monkeypatch, name):
    monkeypatch.setattr(server, "STUCK_SECONDS", 60)
    backend = Held()
    kind, body = REQUESTS[name]
    with serve(backend), connect() as peer:
        peer.send(peer.frame(kind, 7, body))
        for _ in range(3):
            heard = peer.heard()
            assert (heard.kind, heard.request, heard.body) == (ALIVE, 7, b"")
        backend.let_go.set()
        while peer.reply().kind != DONE:
            pass
        peer.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):  # nothing is under way any more
            peer.heard()


def test_so_does_whoever_waits_for_room(serve, connect, hasty):
    backend = Held()
    kind, body = REQUESTS["put"]
    with serve(backend, queue_bytes=1), connect() as first, connect() as second:
        first.send(first.frame(kind, 7, body))
        first.heard()
        second.send(second.frame(kind, 8, body))
        for _ in range(30):  # for longer than a read may take
            assert second.heard().kind == ALIVE
        backend.let_go.set()
        assert (first.reply().kind, second.reply().kind) == (DONE, DONE)


def test_a_read_that_hangs_in_the_backend_is_not_said_to_get_on_but_a_write_has_its_deadline(serve, connect, hasty):
    backend = Held()
    with serve(backend), connect() as reader, connect() as writer:
        reader.send(reader.frame(*_request("read")))
        writer.send(writer.frame(*_request("put")))
        reader.socket.settimeout(2)
        assert any(_hears_nothing(reader) for _ in range(1000))
        for _ in range(80):  # more than were sent in these seconds
            assert writer.heard().kind == ALIVE
        backend.let_go.set()


def _hears_nothing(peer):
    try:
        return peer.heard().kind != ALIVE
    except TimeoutError:
        return True


def _request(name):
    kind, body = REQUESTS[name]
    return kind, 7, body


def test_a_peer_that_does_not_listen_is_not_waited_for(serve, connect, monkeypatch):
    """While it sends, for instance: what it leaves unread must not stop the news of others."""
    monkeypatch.setattr(server, "ALIVE_SECONDS", 0.0001)
    backend = Held()
    with serve(backend), connect() as deaf, connect() as other:
        deaf.send(deaf.frame(*_request("put")))
        other.send(other.frame(*_request("put")))
        for _ in range(2000):  # more than a socket holds
            assert other.heard().kind == ALIVE
        backend.let_go.set()
        assert deaf.reply().kind == DONE
        assert other.reply().kind == DONE


def test_a_peer_that_is_silent_between_requests_is_left_alone(serve, connect, monkeypatch):
    monkeypatch.setattr(server, "STALL_SECONDS", 1)
    with serve(MemoryBackend()), connect() as peer:
        peer.put(b"a", b"1")
        threading.Event().wait(1.5)
        assert peer.keys() == [b"a"]


def test_closing_ends_idle_connections_and_removes_the_socket(tmp_path, serve, connect):
    with serve(MemoryBackend()):
        peer = connect()
        peer.put(b"a", b"1")
    with peer:
        assert peer.is_hung_up_on()
    with socket.socket(socket.AF_UNIX) as probe:
        assert probe.connect_ex(f"{tmp_path}/agent.sock") != 0
