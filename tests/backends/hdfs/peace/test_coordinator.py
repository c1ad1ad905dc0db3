"""The coordinator and its writers, over TCP."""

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import pytest

from safekeeper import wire
from safekeeper.backends.hdfs.peace import client as peace_client
from safekeeper.backends.hdfs.peace import coordinator as coordinator_module
from safekeeper.backends.hdfs.peace import protocol
from safekeeper.backends.hdfs.peace.client import PeacePlacement
from safekeeper.backends.hdfs.peace.coordinator import Coordinator
from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode
from safekeeper.backends.hdfs.peace.protocol import Ask, PeaceKind, Role, handshake
from safekeeper.errors import Unavailable
from safekeeper.wire import BadFrame

SECRET = "a secret for the tests"


def network(per_rack=4, wire=2, link=4):
    """Two racks of DataNodes whose addresses tell their rack and number."""
    nodes = [
        NetworkNode(f"10.0.{rack}.{n}:9866", f"/{rack}", wire, wire) for rack in (1, 2) for n in range(1, per_rack + 1)
    ]
    return Network(nodes, [Link("/1", "/2", link), Link("/2", "/1", link)])


@pytest.fixture
def start():
    """Starts coordinators and writers, and ends them."""
    with ExitStack() as stack:

        class Start:
            def coordinator(self, net=None, **options):
                return stack.enter_context(Coordinator(net or network(), SECRET, **options))

            def writer(self, coordinator, host="10.0.1.1", secret=SECRET, **options):
                address = ("127.0.0.1", getattr(coordinator, "port", coordinator))
                return stack.enter_context(closing(PeacePlacement(address, secret, host=host, **options)))

        yield Start()


def eventually(condition):
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.005)


def rack(address):
    return address.split(".")[2]


def test_a_turn_names_the_nodes_and_its_end_frees_them(start):
    coordinator = start.coordinator()
    writer = start.writer(coordinator)
    with writer.chunks(1, 3, "group") as turns, turns.take() as turn:
        assert [rack(node) for node in turn.favoured] == ["1", "2", "2"]
        assert coordinator.status().running == 1
        turn.written_to(turn.favoured)
    eventually(lambda: coordinator.status().running == 0)
    assert writer.counts().hits == writer.counts().in_order == writer.counts().planned == 1


def test_all_chunks_get_their_turn_and_never_more_at_once_than_fit(start):
    coordinator = start.coordinator(network(wire=1, link=1))
    writers = [start.writer(coordinator, f"10.0.{rack}.{n}") for rack in (1, 2) for n in range(1, 5)]
    lock, busy, seen = threading.Lock(), [], []

    def write(writer):
        with writer.chunks(4, 3, "group") as turns:
            for _ in range(4):
                with turns.take() as turn:
                    with lock:
                        busy.append(turn.favoured)
                        seen.append([list(pipeline) for pipeline in busy])
                    time.sleep(0.002)
                    with lock:
                        busy.remove(turn.favoured)
                    turn.written_to(turn.favoured)  # which ends the turn

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(write, writers))
    assert len(seen) == 32
    for pipelines in seen:
        received = [node for pipeline in pipelines for node in pipeline]
        assert len(received) == len(set(received))  # every wire takes one chunk
    assert sum(writer.counts().hits for writer in writers) == 32


def test_several_threads_share_the_turns_of_one_request(start):
    coordinator = start.coordinator()
    with start.writer(coordinator).chunks(8, 3, "group") as turns:

        def write(_):
            with turns.take() as turn:
                return turn.favoured

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(write, range(8)))


def test_a_thread_that_waits_for_one_requests_turn_does_not_keep_anothers_from_being_used(start):
    coordinator = start.coordinator(network(wire=1))
    writer = start.writer(coordinator)
    with writer.chunks(3, 3, "first") as first, writer.chunks(3, 3, "second") as second:
        for turns in (second, second, second, first, first, first):  # the contrary of the order of asking
            with turns.take() as turn:
                assert turn.favoured
    with writer.chunks(3, 3, "first") as first:
        with writer.chunks(3, 3, "second") as second:
            for _ in range(3):
                second.take().done()
        for _ in range(3):  # also when the one that used its turns has ended
            with first.take() as turn:
                assert turn.favoured
    eventually(lambda: coordinator.status().waiting == coordinator.status().running == 0)


def test_a_request_that_ends_early_owes_others_the_turns_that_it_has_used(start):
    coordinator = start.coordinator(network(wire=1), patience_seconds=60)
    writer = start.writer(coordinator)
    with writer.chunks(2, 3, "first") as first:
        with writer.chunks(2, 3, "second") as second:
            second.take().done()  # it was granted to the first; the second then fails
        for _ in range(2):
            with first.take() as turn:
                assert turn.favoured
    eventually(lambda: coordinator.status().waiting == coordinator.status().running == 0)


def test_a_writer_that_dies_frees_its_turns_and_leaves_the_queue(start):
    coordinator = start.coordinator(network(wire=1))
    dying, living = start.writer(coordinator), start.writer(coordinator)
    turns = dying.chunks(9, 3, "group")
    assert turns.take().favoured
    with living.chunks(1, 3, "group") as others:
        eventually(lambda: coordinator.status().waiting == 9)
        dying.close()
        with others.take() as turn:
            assert turn.favoured
    eventually(lambda: coordinator.status().waiting == coordinator.status().running == 0)


def test_a_turn_that_is_never_reported_as_done_is_over_when_its_lease_is(start):
    coordinator = start.coordinator(network(wire=1), lease_seconds=0.2, patience_seconds=0.4)
    silent, other = start.writer(coordinator), start.writer(coordinator)
    turns = silent.chunks(1, 3, "group")
    assert turns.take().favoured
    with other.chunks(1, 3, "group") as others, others.take() as turn:
        assert turn.favoured
    assert coordinator.status().expired == 1


def test_what_is_not_taken_is_given_back(start):
    coordinator = start.coordinator()
    with start.writer(coordinator).chunks(2, 3, "group"):
        eventually(lambda: coordinator.status().running == 2)
    eventually(lambda: coordinator.status().running == 0)


def test_a_segment_gets_nodes_without_taking_a_turn(start):
    coordinator = start.coordinator(network(wire=1))
    writer = start.writer(coordinator)
    with writer.segment(3) as segment:
        assert [rack(node) for node in segment.favoured] == ["1", "2", "2"]
        assert coordinator.status().running == 0
        segment.written_to(segment.favoured[::-1])
    assert (writer.counts().hits, writer.counts().in_order) == (1, 0)


def test_a_segment_does_not_use_the_turn_of_a_chunk(start):
    coordinator = start.coordinator()
    writer = start.writer(coordinator)
    with writer.chunks(1, 3, "g") as turns:
        eventually(lambda: coordinator.status().running == 1)
        writer.segment(3)
        with turns.take() as turn:
            assert turn.favoured
    eventually(lambda: coordinator.status().running == 0)


def test_a_writer_that_is_no_data_node_sends_from_its_rack(start):
    coordinator = start.coordinator()
    with start.writer(coordinator, "10.9.9.9", rack="/2").chunks(1, 3, "g") as turns, turns.take() as turn:
        assert [rack(node) for node in turn.favoured] == ["2", "1", "1"]
    with start.writer(coordinator, "10.9.9.8").chunks(1, 3, "g") as turns, turns.take() as turn:
        assert turn.favoured == ()  # its rack is not known: HDFS decides


def test_hdfs_decides_what_has_no_plan(start):
    with start.writer(start.coordinator()).chunks(1, 100, "g") as turns, turns.take() as turn:
        assert turn.favoured == ()


def test_data_nodes_may_come_and_go(start):
    coordinator = start.coordinator(network(wire=1))
    writer = start.writer(coordinator)
    with writer.chunks(2, 3, "g") as turns:
        assert turns.take().favoured
        coordinator.use(network(per_rack=2, wire=1))
        with turns.take() as turn:
            assert set(turn.favoured) <= {f"10.0.{r}.{n}:9866" for r in (1, 2) for n in (1, 2)}
    with start.writer(coordinator, "10.0.1.4").chunks(1, 3, "g") as turns, turns.take() as turn:
        assert turn.favoured == ()  # it is no DataNode any more, and its rack is not known


# --- waiting ----------------------------------------------------------------------------------------------------------


def stands_still(writer):
    before = writer.last_heard()
    time.sleep(0.5)
    return writer.last_heard() == before


def test_waiting_for_a_turn_is_progress_while_the_coordinator_answers(start, process):
    child, port = process(0.4)
    first, second = start.writer(port), start.writer(port)
    holding, waiting = first.chunks(1, 3, "g"), second.chunks(1, 3, "g")
    turn = holding.take()
    assert turn.favoured
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(waiting.take)
        for _ in range(5):
            before = second.last_heard()
            eventually(lambda before=before: second.last_heard() > before)
        assert not taken.done()
        turn.done()
        assert taken.result(60).favoured
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: stands_still(second))  # what it sent before may still be on its way
        with second.chunks(1, 3, "g") as turns:
            stood_at = second.last_heard()
            assert turns.take().favoured == ()
            assert second.last_heard() == stood_at


def test_whoever_will_not_wait_any_longer_lets_hdfs_decide(start):
    coordinator = start.coordinator(network(wire=1))
    with start.writer(coordinator).chunks(1, 3, "g") as turns, turns.take() as turn:
        assert turn.favoured
        with start.writer(coordinator, wait_seconds=0.1).chunks(1, 3, "g") as others:
            assert others.take().favoured == ()


def test_a_request_that_has_ended_keeps_nobody_waiting(start):
    """As when the thread that waits for all chunks of a value gets a signal."""
    coordinator = start.coordinator(network(wire=1))
    with start.writer(coordinator).chunks(1, 3, "g") as turns, turns.take(), ThreadPoolExecutor(1) as pool:
        with start.writer(coordinator).chunks(1, 3, "g") as others:
            taken = pool.submit(others.take)
            eventually(lambda: coordinator.status().waiting == 1)
        assert taken.result(60).favoured == ()


# --- a coordinator that is away ---------------------------------------------------------------------------------------


def test_without_a_coordinator_hdfs_decides_at_once(start, caplog):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    writer = start.writer(port)
    with caplog.at_level(logging.WARNING), writer.chunks(5, 3, "g") as turns:
        assert [turns.take().favoured for _ in range(5)] == [()] * 5
    assert "HDFS decides" in caplog.text
    assert writer.segment(3).favoured == ()


def test_a_coordinator_that_accepts_and_says_nothing_is_given_up(start, monkeypatch):
    monkeypatch.setattr(peace_client, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        writer = start.writer(silent.getsockname()[1])
        with writer.chunks(1, 3, "g") as turns, turns.take() as turn:
            assert turn.favoured == ()


def test_those_who_wait_go_on_when_the_coordinator_closes(start):
    coordinator = start.coordinator(network(wire=1))
    writer = start.writer(coordinator)
    with writer.chunks(4, 3, "g") as turns:
        assert turns.take().favoured
        threading.Timer(0.1, coordinator.close).start()
        assert [turns.take().favoured for _ in range(3)] == [()] * 3


def test_a_coordinator_that_came_back_is_found(start, monkeypatch):
    monkeypatch.setattr(peace_client, "RETRY_SECONDS", 0.05)
    first = start.coordinator()
    writer = start.writer(first)
    assert writer.segment(3).favoured
    first.close()
    assert writer.segment(3).favoured == ()
    start.coordinator(port=first.port)
    eventually(lambda: writer.segment(3).favoured)


SERVE = """
import resource, sys
from safekeeper.backends.hdfs.peace import coordinator
from safekeeper.backends.hdfs.peace.coordinator import Coordinator
from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode
coordinator.HANDSHAKE_SECONDS = 3600
nodes = [NetworkNode(f"10.0.{rack}.{n}:9866", f"/{rack}", 1, 1) for rack in (1, 2) for n in range(1, 5)]
network = Network(nodes, [Link("/1", "/2", 1), Link("/2", "/1", 1)])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[3])))
with Coordinator(network, sys.argv[1], patience_seconds=float(sys.argv[2])) as coordinator:
    print(coordinator.port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def process():
    """Starts a coordinator in a process of its own; gives the process and the port."""
    with ExitStack() as stack:

        def start(patience, files=1024):
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SERVE, SECRET, str(patience), str(files)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(child.kill)
            return child, int(child.stdout.readline())

        yield start


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_a_coordinator_lost_in_the_middle_of_a_timestep_stops_nobody_longer_than_its_lease(start, process, how):
    patience = 1.0
    child, port = process(patience)
    writers = [start.writer(port, f"10.0.{rack}.{n}") for rack in (1, 2) for n in range(1, 5)]
    lost, waits, planned = threading.Event(), [], []

    def write(writer):
        with writer.chunks(6, 3, "g") as turns:
            for _ in range(6):
                began = time.monotonic()
                with turns.take() as turn:
                    waits.append((time.monotonic() - began, lost.is_set()))
                    planned.append(bool(turn.favoured))
                    if turn.favoured and sum(planned) == 5:
                        os.kill(child.pid, how)
                        lost.set()
                    time.sleep(0.01)
                    turn.written_to(turn.favoured)

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(write, writers))
    assert len(planned) == 48
    assert 5 <= sum(planned) < 48
    # The promise is one second; what is on top is for a machine that is busy with other things.
    assert max(wait for wait, after in waits if after) < patience + 20


# --- who may speak ----------------------------------------------------------------------------------------------------


def receive(connection, size):
    data = connection.recv(size, socket.MSG_WAITALL)
    return data if len(data) == size else None


def test_whoever_does_not_know_the_secret_gets_no_answer(start, caplog):
    coordinator = start.coordinator()
    writer = start.writer(coordinator, secret="some other secret")
    with caplog.at_level(logging.WARNING), writer.chunks(1, 3, "g") as turns:
        assert turns.take().favoured == ()
    assert "may have another secret" in caplog.text
    eventually(lambda: "does not know the secret" in caplog.text)
    assert coordinator.status().writers == 0


def test_a_coordinator_that_does_not_know_the_secret_is_not_believed(start, caplog):
    with Coordinator(network(), "some other secret") as impostor:
        assert start.writer(impostor).segment(3).favoured == ()


def test_an_answer_cannot_be_used_twice(start):
    coordinator = start.coordinator()
    with socket.create_connection(("127.0.0.1", coordinator.port)) as first:
        answer = handshake(SECRET.encode()).answer(receive(first, wire.HELLO_BYTES))
        first.sendall(answer)
        assert receive(first, wire.PROOF_BYTES)
    with socket.create_connection(("127.0.0.1", coordinator.port)) as second:
        receive(second, wire.HELLO_BYTES)
        second.sendall(answer)
        assert second.recv(1) == b""


@pytest.fixture
def raw(start):
    """A connection to a coordinator past our own writer, and the seal of its frames."""
    coordinator = start.coordinator()
    with socket.create_connection(("127.0.0.1", coordinator.port)) as connection:
        begun = handshake(SECRET.encode())
        connection.sendall(begun.answer(receive(connection, wire.HELLO_BYTES)))
        begun.check_welcome(receive(connection, wire.PROOF_BYTES))
        yield coordinator, connection, begun.seal(Role.WRITER)


GOOD = Ask("10.0.1.1", "", 3, 1, "g").encode()
HEAD = wire.SEALED_HEADER


@pytest.mark.parametrize(
    "damage",
    [
        lambda seal: HEAD.pack(99, 1, 0) + bytes(16),
        lambda seal: HEAD.pack(1, 1, 1 << 30),
        lambda seal: seal.encode(PeaceKind.GRANT, 1, GOOD),
        lambda seal: seal.encode(PeaceKind.ASK, 1, GOOD + b"x"),
        lambda seal: seal.encode(PeaceKind.ASK, 1, GOOD[:-1]),
        lambda seal: seal.encode(PeaceKind.ASK, 1, struct.pack("<II", 0, 1) + GOOD[8:]),
        lambda seal: seal.encode(PeaceKind.ASK, 1, struct.pack("<II", 3, 0) + GOOD[8:]),
        lambda seal: seal.encode(PeaceKind.ASK, 1, struct.pack("<II", 3, 1 << 31) + GOOD[8:]),
        lambda seal: seal.encode(PeaceKind.ASK, 1, struct.pack("<III", 3, 1, 1 << 31)),
        lambda seal: seal.encode(PeaceKind.ASK, 1, GOOD.replace(b"10.0", b"\xff\xfe\xff\xfe")),
        lambda seal: seal.encode(PeaceKind.ASK, 1, GOOD)[:-1] + b"\0",
        lambda seal: seal.encode(PeaceKind.ASK, 1, GOOD) * 2,
        lambda seal: seal.encode(PeaceKind.ASK, 1, GOOD) + seal.encode(PeaceKind.ASK, 1, GOOD),
        lambda seal: seal.encode(PeaceKind.DONE, 1, b"") and seal.encode(PeaceKind.ASK, 1, GOOD),
    ],
    ids=[
        "unknown kind",
        "endless body",
        "a coordinator's kind",
        "too long",
        "too short",
        "no replicas",
        "no chunks",
        "endless chunks",
        "length beyond the body",
        "no text",
        "wrong tag",
        "sent again",
        "number in use",
        "one left out",
    ],
)
def test_nonsense_ends_its_connection_and_nobody_elses(raw, start, damage):
    coordinator, connection, seal = raw
    other = start.writer(coordinator)
    with other.chunks(1, 3, "g") as turns:
        assert turns.take().favoured
        connection.sendall(damage(seal))
        connection.settimeout(60)
        while connection.recv(1 << 16):
            pass
        assert other.segment(3).favoured


def test_a_writer_that_reads_nothing_is_hung_up_on(raw, start):
    """Its rack is not known, which it is told, with the name that it gave."""
    coordinator, connection, seal = raw
    long_name = Ask("10.9.9.9", "r" * 60_000, 3, 1, "g").encode()
    frames = (seal.encode(PeaceKind.ASK, number, long_name) for number in range(10_000))
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        deque(map(connection.sendall, frames), maxlen=0)
    eventually(lambda: coordinator.status().writers == 0)
    assert start.writer(coordinator).segment(3).favoured


def test_whoever_says_nothing_is_hung_up_on(start, monkeypatch):
    monkeypatch.setattr(coordinator_module, "HANDSHAKE_SECONDS", 0.1)
    coordinator = start.coordinator()
    with socket.create_connection(("127.0.0.1", coordinator.port)) as connection:
        connection.settimeout(60)
        assert receive(connection, wire.HELLO_BYTES)
        assert connection.recv(1) == b""


def test_there_are_only_so_many_strangers_at_a_time(start, monkeypatch):
    monkeypatch.setattr(coordinator_module, "MOST_STRANGERS", 2)
    coordinator = start.coordinator()
    known = start.writer(coordinator)
    assert known.segment(3).favoured
    with ExitStack() as stack:
        address = ("127.0.0.1", coordinator.port)
        strangers = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(3)]
        hellos = [receive(stranger, wire.HELLO_BYTES) for stranger in strangers]
        assert has_ended(strangers[0])  # the one that had been silent for longest
        assert start.writer(coordinator).segment(3).favoured
        assert has_ended(strangers[1])
        assert known.segment(3).favoured
        begun = handshake(SECRET.encode())  # the last one has still its place
        strangers[2].sendall(begun.answer(hellos[2]))
        begun.check_welcome(receive(strangers[2], wire.PROOF_BYTES))


def has_ended(connection):
    """Whether the other side has hung up, which is waited for."""
    connection.settimeout(60)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def patient(monkeypatch):
    """Writers that wait for a machine that is busy with other things: it is not time that is tested."""
    monkeypatch.setattr(peace_client, "ANSWER_SECONDS", 60.0)


def test_silent_strangers_do_not_keep_genuine_writers_out(start, patient):
    coordinator = start.coordinator()
    first = start.writer(coordinator)
    assert first.segment(3).favoured
    stop, made = threading.Event(), []

    def connect_and_say_nothing():
        address = ("127.0.0.1", coordinator.port)
        silent = deque(maxlen=2 * coordinator_module.MOST_STRANGERS)
        while not stop.is_set():
            if len(silent) == silent.maxlen:
                silent.popleft().close()
            with suppress(OSError):
                silent.append(socket.create_connection(address, 60))
                made.append(None)
        for connection in silent:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        try:
            for _ in range(2):
                pool.submit(connect_and_say_nothing)
            eventually(lambda: len(made) > 2 * coordinator_module.MOST_STRANGERS)
            came_in = [bool(start.writer(coordinator).segment(3).favoured) for _ in range(40)]
            assert first.segment(3).favoured, "a stranger has taken the place of a writer"
        finally:
            stop.set()
    assert all(came_in), f"{came_in.count(False)} of {len(came_in)} handshakes failed"
    assert coordinator.status().writers == 41


def test_strangers_take_places_from_others_of_their_own_address_first(start, monkeypatch):
    monkeypatch.setattr(coordinator_module, "MOST_STRANGERS", 4)
    coordinator = start.coordinator()
    address = ("127.0.0.1", coordinator.port)
    with ExitStack() as stack:
        slow = stack.enter_context(socket.create_connection(address, 60, source_address=("127.0.0.2", 0)))
        hello = receive(slow, wire.HELLO_BYTES)
        for _ in range(20):
            assert receive(stack.enter_context(socket.create_connection(address, 60)), wire.HELLO_BYTES)
        begun = handshake(SECRET.encode())
        slow.sendall(begun.answer(hello))
        begun.check_welcome(receive(slow, wire.PROOF_BYTES))


def test_where_files_are_few_strangers_leave_them_to_writers(start, process, patient):
    _, port = process(4, files=64)
    with ExitStack() as stack:
        for number in range(40):
            assert start.writer(port, f"10.0.1.{number % 4 + 1}").segment(3).favoured
            for _ in range(4):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        assert start.writer(port).segment(3).favoured


def test_another_writers_turn_cannot_be_ended(raw, start):
    coordinator, connection, seal = raw
    with start.writer(coordinator).chunks(1, 3, "g") as turns, turns.take():
        for number in range(20):
            connection.sendall(seal.encode(PeaceKind.DONE, 1, protocol.number(number)))
        connection.sendall(seal.encode(PeaceKind.STAND, 2, GOOD))
        assert receive(connection, HEAD.size)
        assert coordinator.status().running == 1


def test_a_short_secret_is_refused():
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Coordinator(network(), "short")


def test_a_port_that_is_taken_is_an_error_of_one_line(start):
    coordinator = start.coordinator()
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{coordinator.port}"):
        start.coordinator(port=coordinator.port)


def test_a_frame_that_is_too_long_is_not_sent():
    with pytest.raises(BadFrame, match="at most 65536 bytes"):
        handshake(b"x" * 16).seal(Role.WRITER).encode(PeaceKind.ASK, 1, bytes(70_000))
