"""A standby follows a journal, and takes over when its owner is gone; a wrong guess is harmless."""

import asyncio
import fcntl
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import safekeeper
from safekeeper import Batch, CheckpointId, Closed, Conflict, Corruption, Every, claims, cli
from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.lab.shaped_network import ShapedNetwork
from safekeeper.bench.studies import takeover
from safekeeper.claims import Mark
from safekeeper.operators import Operator
from safekeeper.policy import IdleCapture
from safekeeper.policy.minmax import CaptureUnit, RootRule, WaitingPaste
from safekeeper.standby import Follower, OwnerDoor, OwnerWatch, ReceivedBlocks, follower
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.testing import Faulty
from safekeeper.testing.peer import PATIENCE
from safekeeper.testing.proxy import Proxy

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
pytestmark = pytest.mark.timeout(0) if LONG else []


def until(check):
    give_up = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@pytest.fixture
def url(tmp_path):
    return f"log://{tmp_path}/store"


def counter(url, **settings):
    return Operator("counter", url, **({"standby": "warm", "lease": 0.3} | settings))


def count(operator, numbers):
    for number in numbers:
        with operator.event("in", number) as event:
            event.part(b"k", int).state += 1


class Waiting:
    """An operator that is entered in another thread."""

    def __init__(self, operator):
        self.operator = operator
        self.error = None
        self.entered = threading.Event()
        self.thread = threading.Thread(target=self._enter, daemon=True)
        self.thread.start()

    def _enter(self):
        try:
            self.operator.__enter__()
            self.entered.set()
        except BaseException as error:
            self.error = error

    def follows(self):
        until(lambda: self.operator._follower is not None and self.operator._follower.follow.end is not None)

    def end(self):
        self.operator.stop()
        self.thread.join(PATIENCE)
        if self.entered.is_set():
            self.operator.__exit__(None, None, None)


def test_killed_and_stopped_owners_are_replaced_and_nothing_is_double_or_missing(tmp_path):
    seed = Random().randrange(1 << 30)
    print("seed", seed)
    failures = (["kill"] * 100 + ["stop"] * 20) if LONG else ["kill", "kill", "stop", "kill"]
    found = takeover.run(str(tmp_path), failures, 300, seed, lease=0.6)
    assert [one.how for one in found] == failures


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_an_owner_on_a_host_whose_wire_is_pulled_is_replaced_after_the_lease_from_another_host(tmp_path):
    seed = Random().randrange(1 << 30)
    print("seed", seed)
    lease = 0.6
    failures = (["cut"] * 20 + ["kill"] * 20) if LONG else ["cut", "kill", "cut"]
    with ShapedNetwork({"/owner": 1, "/standby": 1}) as network:
        found = takeover.run(str(tmp_path), failures, 300, seed, lease, network)
    assert [one.how for one in found] == failures
    least = lease * 2 / 3  # it may have spoken a third of it before: nothing else can tell
    assert all(one.seconds >= least for one in found if one.how == "cut")


def test_the_first_one_owns_and_the_second_one_follows_until_it_has_ended(url):
    with counter(url) as owner:
        count(owner, range(1, 6))
        owner.flush()
        standby = Waiting(counter(url))
        standby.follows()
        count(owner, range(6, 11))
        owner.flush()
        until(lambda: standby.operator._follower.follow.image.at.events == 10)
        assert not standby.entered.is_set()
        follow = standby.operator._follower.follow
        loads = follow.loads  # one; more if the owner was so much quicker that blocks were gone
    assert standby.entered.wait(PATIENCE)
    assert standby.operator.look(b"k") == 10
    assert standby.operator.positions == {"in": 10}
    assert follow.loads == loads  # what it had followed was not read again
    count(standby.operator, [11])
    standby.end()
    assert standby.operator.look(b"k") == 11


def test_of_two_that_are_started_at_the_same_moment_one_owns_and_the_other_follows_it(url, monkeypatch):
    owners = iter(["f" * 16, "0" * 16])
    higher_has_looked, lower_has_it = threading.Event(), threading.Event()
    write = claims._write_surely

    def write_late(store, batch):
        if not higher_has_looked.is_set():
            higher_has_looked.set()
            assert lower_has_it.wait(PATIENCE)
        write(store, batch)

    def let_the_higher_one_claim(self):
        if not lower_has_it.is_set():
            lower_has_it.set()
            until(lambda: claims.holder(self._store, "counter").mark.owner == "f" * 16)

    monkeypatch.setattr(claims, "secrets", SimpleNamespace(token_hex=lambda size: next(owners, os.urandom(size).hex())))
    monkeypatch.setattr(claims, "_write_surely", write_late)
    monkeypatch.setattr(Follower, "let_others_claim", let_the_higher_one_claim)
    higher = Waiting(counter(url))
    assert higher_has_looked.wait(PATIENCE)
    lower = Waiting(counter(url))
    assert higher.entered.wait(PATIENCE)
    count(higher.operator, [1])
    higher.operator.flush()
    lower.follows()
    assert (lower.error, lower.entered.is_set()) == (None, False)
    higher.end()
    assert lower.entered.wait(PATIENCE)
    assert lower.operator.look(b"k") == 1
    lower.end()


def test_of_two_standbys_one_takes_over_and_the_other_follows_it(url):
    owner = counter(url).__enter__()
    count(owner, [1])
    owner.flush()
    standbys = [Waiting(counter(url)) for _ in range(2)]
    for standby in standbys:
        standby.follows()
    owner.__exit__(None, None, None)
    until(lambda: any(standby.entered.is_set() for standby in standbys))
    until(lambda: any(owns(standby) for standby in standbys))
    (first,) = [standby for standby in standbys if owns(standby)]
    (second,) = [standby for standby in standbys if standby is not first]
    if second.entered.is_set():  # both claimed at the same moment, and it has lost
        second.operator.__exit__(Conflict, Conflict(), None)
        first.end()
        return
    first.end()
    assert second.entered.wait(PATIENCE)
    assert second.operator.look(b"k") == 2
    second.end()


def owns(standby):
    """Whether it can go on."""
    if not standby.entered.is_set():
        return False
    try:
        if standby.operator.events == 1:
            count(standby.operator, [2])
        standby.operator.flush()
    except Conflict:
        return False
    return True


def test_an_owner_that_is_silent_is_replaced_and_stops_when_it_goes_on(url, monkeypatch):
    owner = counter(url).__enter__()
    count(owner, [1])
    owner.flush()
    standby = Waiting(counter(url))
    standby.follows()
    monkeypatch.setattr(OwnerDoor, "_tell", lambda *_: None)  # alive, and nobody hears of it
    assert standby.entered.wait(PATIENCE)
    count(standby.operator, [2])
    count(owner, [2])
    with pytest.raises(Conflict):
        owner.flush()
    owner.__exit__(Conflict, Conflict(), None)
    standby.operator.flush()
    assert standby.operator.look(b"k") == 2
    standby.end()


def test_a_standby_can_be_told_to_stop_waiting(url):
    with counter(url) as owner:
        count(owner, [1])
        owner.flush()
        standby = Waiting(counter(url))
        standby.follows()
        standby.operator.stop()
        standby.thread.join(PATIENCE)
        assert isinstance(standby.error, Closed)
        count(owner, [2])
        owner.flush()


def test_a_cancelled_task_does_not_wait_for_its_turn(url):
    async def main():
        task = asyncio.create_task(counter(url).__aenter__())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with counter(url) as owner:
        count(owner, [1])
        asyncio.run(main())


def test_the_lag_is_told(url):
    lags = []
    with counter(url, lease=PATIENCE) as owner:  # however slow this is: the owner is not gone
        count(owner, [1])
        owner.flush()
        standby = Waiting(counter(url, lease=PATIENCE, on_lag=lags.append))
        standby.follows()
        until(lambda: standby.operator.lag is not None)
        count(owner, range(2, 50))
        owner.flush()
        until(lambda: lags and standby.operator.lag.blocks == 0)
        with safekeeper.open(url) as store:
            until(lambda: len(list(store.keys(f"counter{follower.STANDBYS}"))) == 1)
        said = CliRunner().invoke(cli.app, ["journal", url]).stdout
        assert f"standby   process {os.getpid()} on {socket.gethostname()}: " in said
        (row,) = json.loads(CliRunner().invoke(cli.app, ["journal", "--json", url]).stdout)
        assert row["standbys"][0]["pid"] == os.getpid()
    assert standby.entered.wait(PATIENCE)
    with safekeeper.open(url) as store:
        until(lambda: not list(store.keys(f"counter{follower.STANDBYS}")))
    assert standby.operator.lag is None
    standby.end()


class Recorded:
    """A rule, with what it has chosen; while it is held it lets nobody paste."""

    def __init__(self):
        self.rule, self.held, self.deeds = RootRule(), False, []

    def choose(self, now, units, pastes):
        deed = self.rule.choose(now, units, () if self.held else pastes)
        if deed is not None:
            self.deeds.append(deed)
        return deed


def test_a_process_that_owns_one_operator_and_stands_by_for_others_chooses_capture_or_paste(tmp_path):
    rule = Recorded()
    idle = IdleCapture(rule, share=1.0, at_least=PATIENCE)
    names = ["a", "b"]

    def opened(name, folder, **settings):
        return Operator(name, f"log://{tmp_path}/{folder}", standby="warm", lease=PATIENCE, **settings)

    with opened("own", "mine", capture=idle) as own:
        owners = {name: opened(name, "theirs").__enter__() for name in names}
        for owner in owners.values():
            count(owner, [1])
            owner.flush()
        standbys = {name: Waiting(opened(name, "theirs", capture=idle)) for name in names}
        for standby in standbys.values():
            standby.follows()

        def take(numbers):
            for number in numbers:
                for operator in (own, *owners.values()):
                    with operator.event("in", number) as event:  # a part of its own: older blocks are still needed
                        event.part(b"%d" % number, int).state = number
                    if operator is not own:
                        operator.flush()

        take(range(2, 21))
        until(lambda: all(image(standby).at.events == 20 for standby in standbys.values()))
        until(lambda: not own._core.unsaved)
        chosen = {type(deed) for deed in rule.deeds}
        assert chosen == {CaptureUnit, WaitingPaste}
        assert {deed.owner for deed in rule.deeds if isinstance(deed, WaitingPaste)} == {
            f"{socket.gethostname()} {os.getpid()}"
        }
        rule.held = True
        take(range(21, 31))
        until(lambda: not own._core.unsaved)
        until(lambda: all(standby.operator.lag.waiting for standby in standbys.values()))
        until(lambda: all(standby.operator.lag.blocks == 0 for standby in standbys.values()))
        assert all(image(standby).at.events < 30 for standby in standbys.values())
        loads = {name: standby.operator._follower.follow for name, standby in standbys.items()}
        before = {name: follow.loads for name, follow in loads.items()}
        for owner in owners.values():
            owner.__exit__(None, None, None)
        for name, standby in standbys.items():
            assert standby.entered.wait(PATIENCE), standby.error
            assert [standby.operator.look(b"%d" % number) for number in range(2, 31)] == list(range(2, 31))
            assert loads[name].loads == before[name]  # what had waited was pasted, not read again
            standby.end()


def image(standby):
    return standby.operator._follower.follow.image


def test_an_owner_whose_port_another_program_has_now_is_gone():
    mark = Mark(1, "ab" * 8)
    for said in (b"HTTP/1.1 400\r\n\r\n", b"safekeeper 2_%s 0 1\n" % (b"cd" * 8), b"x" * 5000):
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            watch = OwnerWatch(mark, {"watch": f"127.0.0.1:{listener.getsockname()[1]}"}, 60.0)
            connection, _ = listener.accept()
            with closing(watch), connection:
                connection.sendall(said)
                until(lambda watch=watch: watch.wait(0.01) or watch.gone)


def test_an_owner_that_refuses_connections_is_gone_and_one_without_a_door_is_not():
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    assert OwnerWatch(Mark(1, "ab" * 8), {"watch": f"127.0.0.1:{port}"}, 60.0).gone
    unwatched = OwnerWatch(Mark(1, "ab" * 8), {"pid": 1}, 0.01)
    unwatched.wait(0.05)
    assert not unwatched.gone
    assert not unwatched.is_watched


def test_a_door_says_who_is_behind_it():
    door = OwnerDoor(("127.0.0.1", 0), 0.01, lambda: 17)
    with closing(door):
        door.mark = Mark(3, "ab" * 8)
        with closing(OwnerWatch(door.mark, {"watch": f"127.0.0.1:{door.port}"}, 60.0)) as watch:
            until(lambda: watch.wait(0.05) or watch.number == 17)
            assert watch.watching == door.watching == 1
            door.close()
            until(lambda: watch.wait(0.05) or watch.gone)


def test_a_door_at_which_many_come_and_go_still_tells_those_who_stay():
    blocks = 17
    door = OwnerDoor(("127.0.0.1", 0), 0.2, lambda: blocks)
    with closing(door):
        door.mark = Mark(3, "ab" * 8)
        with closing(OwnerWatch(door.mark, {"watch": f"127.0.0.1:{door.port}"}, 60.0)) as watch:
            until(lambda: watch.wait(0.05) or watch.number == 17)
            blocks = 18

            def told():
                for _ in range(100):
                    socket.create_connection(("127.0.0.1", door.port)).close()
                watch.wait(0)
                return watch.gone or watch.number == 18

            until(told)
            assert not watch.gone


def test_an_owner_whose_way_is_cut_is_gone_after_the_lease_and_not_before():
    door = OwnerDoor(("127.0.0.1", 0), 0.02)
    door.mark = Mark(1, "ab" * 8)
    with (
        closing(door),
        closing(Proxy(door.port)) as proxy,
        closing(OwnerWatch(door.mark, {"watch": f"127.0.0.1:{proxy.port}"}, 2.0)) as watch,
    ):
        until(lambda: watch.wait(0.05) or watch.watching == 1)
        proxy.partition()
        begun = time.monotonic()
        until(lambda: watch.wait(0.01) or watch.gone)
        assert time.monotonic() - begun > 0.2  # nobody said that it is gone: only the lease can tell


def test_who_sees_owners_come_and_go_waits_longer(url, monkeypatch):
    with safekeeper.open(url) as store:
        waiting = Follower(store, "counter", lease=0.1)
        for epoch in range(1, 8):
            waiting._count(Mark(epoch, "ab" * 8))
        waited = []
        monkeypatch.setattr(waiting._ending, "wait", waited.append)
        waiting._calm_down()
        assert waited
        monkeypatch.setattr(follower, "_LATELY", 0.0)
        time.sleep(0.001)
        waiting._calm_down()
        assert len(waited) == 1


@pytest.mark.parametrize("damage", ["bytes", "gone"])
@pytest.mark.parametrize("standby", ["warm", None])
def test_a_damaged_journal_is_one_clear_error_and_nobody_waits_for_it(url, damage, standby):
    with Operator("counter", url, capture=Every(events=1)) as owner:
        for number in range(1, 20):
            with owner.event("in", number) as event:
                event.part(b"%d" % number, int).state = number
            owner.flush()
    with safekeeper.open(url) as store:
        third = CheckpointId("counter", sorted(store.keys("counter"))[2])
        batch = Batch()
        batch.delete(third)
        store.write(Batch({third: b"damaged"}) if damage == "bytes" else batch)
        claims.take(store, "counter", watch=f"127.0.0.1:{takeover._free_port()}")  # of one that was killed
    started = Waiting(counter(url, standby=standby))
    until(lambda: started.error is not None)
    assert isinstance(started.error, Corruption)
    assert "\n" not in str(started.error)
    assert re.search("these bytes are not a block" if damage == "bytes" else "block 3 is missing", str(started.error))


def read_some(connection):
    try:
        return connection.recv(1 << 20)
    except BlockingIOError:
        return b""


class TestTrouble:
    """Whatever goes wrong while a standby follows, it goes on watching, and takes over."""

    @pytest.fixture
    def store(self):
        with MemoryBackend() as store:
            yield store

    def follows(self, store, faulty, **settings):
        owner = counter(store).__enter__()
        count(owner, [1])
        owner.flush()
        standby = Waiting(counter(faulty, **settings))
        standby.follows()
        return owner, standby

    def takes_over(self, owner, standby, numbers):
        count(owner, numbers)
        owner.__exit__(None, None, None)
        until(lambda: standby.entered.is_set() or standby.error is not None)
        assert standby.error is None
        assert standby.operator.look(b"k") == numbers[-1]
        standby.end()

    @pytest.mark.parametrize("method", ["read", "keys", "write"])
    def test_its_store_is_away_when_it_takes_over(self, store, method, caplog):
        faulty = Faulty(store)
        owner, standby = self.follows(store, faulty)
        count(owner, [2])
        owner.flush()
        until(lambda: image(standby).at.events == 2)
        faulty.fail(method, times=7)
        self.takes_over(owner, standby, [3])
        assert caplog.text.count("it is tried again") <= 3

    def test_its_store_is_away_while_it_follows(self, store, caplog):
        faulty = Faulty(store)
        owner, standby = self.follows(store, faulty)
        faulty.fail("read", times=10)
        faulty.fail("keys", times=3)
        count(owner, [2, 3])
        owner.flush()
        until(lambda: image(standby).at.events == 3)
        assert not standby.entered.is_set()
        assert "it is tried again: " in caplog.text
        self.takes_over(owner, standby, [4, 5, 6])

    def test_a_callback_raises(self, store, caplog):
        def on_lag(lag):
            raise RuntimeError("no such gauge")

        owner, standby = self.follows(store, store, on_lag=on_lag)
        self.takes_over(owner, standby, [2, 3])
        assert "on_lag= has raised RuntimeError('no such gauge')" in caplog.text

    def test_something_raises_that_nobody_thought_of(self, store, caplog, monkeypatch):
        receive, broken = ReceivedBlocks.receive, threading.Event()

        def received(self, *, look):
            if broken.is_set():
                raise RuntimeError("nobody thought of it")
            return receive(self, look=look)

        monkeypatch.setattr(ReceivedBlocks, "receive", received)
        owner, standby = self.follows(store, store)
        broken.set()
        until(lambda: "nobody thought of it" in caplog.text)
        self.takes_over(owner, standby, [2, 3])

    def test_a_block_is_damaged_and_an_owner_that_cannot_be_watched_ends(self, store, caplog, monkeypatch):
        receive, looks = ReceivedBlocks.receive, []

        def received(self, *, look):
            looks.extend([None] if look else [])
            return receive(self, look=look)

        monkeypatch.setattr(ReceivedBlocks, "receive", received)
        with Operator("counter", store, capture=Every(events=1)) as owner:
            for number in range(1, 6):
                with owner.event("in", number) as event:
                    event.part(b"%d" % number, int).state = number
                owner.flush()
            third = CheckpointId("counter", sorted(store.keys("counter"))[2])
            store.write(Batch({third: b"damaged"}))
            standby = Waiting(counter(store))
            until(lambda: len(looks) >= 4)
            assert caplog.text.count("it is tried again: ") == 1
            assert (standby.error, standby.entered.is_set()) == (None, False)
        until(lambda: standby.error is not None)
        assert isinstance(standby.error, Corruption)

    def test_its_port_is_taken(self, store, caplog):
        with closing(socket.create_server(("127.0.0.1", 0))) as other:
            owner, standby = self.follows(store, store, watch=f"127.0.0.1:{other.getsockname()[1]}")
            self.takes_over(owner, standby, [2])
        assert "is taken, perhaps by an owner that was stopped" in caplog.text

    def test_another_program_says_a_number_that_is_too_long(self):
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            watch = OwnerWatch(Mark(1, "ab" * 8), {"watch": f"127.0.0.1:{listener.getsockname()[1]}"}, 60.0)
            connection, _ = listener.accept()
            with closing(watch), connection:
                connection.sendall(b"safekeeper 1_%b %b 0\n" % (b"ab" * 8, b"9" * 5000))
                until(lambda: watch.wait(0.01) or watch.gone)

    @pytest.mark.parametrize("place", ["no.such.host.%s:1" % ("x" * 70), "127.0.0.1:99999", "127.0.0.1:\u0663"])
    def test_an_address_that_makes_no_sense_counts_as_silent(self, place):
        with closing(OwnerWatch(Mark(1, "ab" * 8), {"watch": place}, 0.05)) as watch:
            until(lambda: watch.wait(0.01) or watch.gone or not watch.is_watched)

    def test_a_connection_that_cannot_be_made_is_tried_again(self, monkeypatch):
        connect, failures = socket.create_connection, iter([OSError(24, "Too many open files")] * 3)

        def connected(*args, **settings):
            for error in failures:
                raise error
            return connect(*args, **settings)

        monkeypatch.setattr(socket, "create_connection", connected)
        with closing(OwnerDoor(("127.0.0.1", 0), 0.05)) as door:
            door.mark = Mark(1, "ab" * 8)
            with closing(OwnerWatch(door.mark, {"watch": f"127.0.0.1:{door.port}"}, 3.0)) as watch:
                until(lambda: watch.wait(0.05) or watch.watching == 1 or watch.gone)
                assert not watch.gone

    def test_a_process_with_thousands_of_connections_watches(self, monkeypatch):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        connect = socket.create_connection

        def high(*args, **settings):
            with connect(*args, **settings) as connection:
                return socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD, 3000))

        monkeypatch.setattr(socket, "create_connection", high)
        try:
            with closing(OwnerDoor(("127.0.0.1", 0), 0.05)) as door:
                door.mark = Mark(1, "ab" * 8)
                with closing(OwnerWatch(door.mark, {"watch": f"127.0.0.1:{door.port}"}, 60.0)) as watch:
                    until(lambda: watch.wait(0.05) or watch.watching == 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_a_door_goes_on_when_its_owner_cannot_say_how_far_it_is(self, caplog):
        numbers = iter([RuntimeError("not now")] * 3)

        def number():
            for error in numbers:
                raise error
            return 17

        with closing(OwnerDoor(("127.0.0.1", 0), 0.05, number)) as door:
            door.mark = Mark(1, "ab" * 8)
            with closing(OwnerWatch(door.mark, {"watch": f"127.0.0.1:{door.port}"}, 60.0)) as watch:
                until(lambda: watch.wait(0.05) or watch.number == 17)
        assert "who watches this owner may not hear of it: RuntimeError('not now')" in caplog.text

    def test_a_watcher_that_was_stopped_for_long_gets_whole_lines(self):
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        ours.setblocking(False)
        with closing(OwnerDoor(("127.0.0.1", 0), 60.0, lambda: 17)) as door, theirs:
            door._watchers.append(ours)
            lines = b""
            for _ in range(3):
                for _ in range(100_000):
                    door._tell(door._watchers)
                    if door._unsent:
                        break
                theirs.setblocking(False)
                while len(data := read_some(theirs)):
                    lines += data
                door._tell(door._watchers)
            lines += read_some(theirs)
        assert set(lines.splitlines(keepends=True)) == {b"safekeeper 0_ 17 1\n"}


@pytest.mark.parametrize("settings", ({"standby": "hot"}, {"lease": 0}, {"watch": "7000"}, {"watch": "a:99999"}))
def test_settings_that_make_no_sense_are_refused(url, settings):
    with pytest.raises(ValueError, match="takes"):
        counter(url, **settings)


def test_a_standby_waits_while_an_owner_cannot_be_watched(url, caplog):
    with Operator("counter", url) as owner:
        count(owner, [1])
        owner.flush()
        standby = Waiting(counter(url))
        until(lambda: "cannot be watched" in caplog.text)
        time.sleep(0.5)
        assert not standby.entered.is_set()
    assert standby.entered.wait(PATIENCE)
    standby.end()


def test_a_claim_that_nobody_watches_any_more_is_taken_at_once(url):
    with safekeeper.open(url) as store:
        claims.take(store, "counter", watch="127.0.0.1:1")
    with counter(url, lease=60.0) as owner:
        count(owner, [1])


def test_the_program_of_the_page_goes_on_when_one_of_it_is_killed(tmp_path, url):
    page = (Path(__file__).parents[2] / "docs" / "standby.md").read_text()
    (code,) = re.findall(r"^```python file=counter.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ports = [takeover._free_port() for _ in range(3)]
    for before, after in zip((7001, 7002, 7003), ports, strict=True):
        code = code.replace(f"127.0.0.1:{before}", f"127.0.0.1:{after}")
    (tmp_path / "counter.py").write_text(code)
    outputs = f"tcp://127.0.0.1:{ports[1]},127.0.0.1:{ports[2]}/counts"
    with (
        closing(open_outlet(f"tcp://127.0.0.1:{ports[0]}/words", readers=["counter"])) as words,
        closing(open_inlet(outputs, reader="dashboard")) as counts,
    ):
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "STORE": url}
        running = [subprocess.Popen([sys.executable, tmp_path / "counter.py"], env=environment) for _ in range(2)]
        try:
            found = []
            for number in range(1, 41):
                words.send([StreamElement(number, b"", b"word")])
                give_up = time.monotonic() + PATIENCE
                while len(found) < number:
                    assert time.monotonic() < give_up
                    found += counts.read(timeout=1)
                if number == 20:
                    with safekeeper.open(url) as store:
                        owner = claims.holder(store, "counter").about["pid"]
                    os.kill(owner, signal.SIGKILL)
            assert [element.body for element in found] == [b"%d" % number for number in range(1, 41)]
        finally:
            for process in running:
                process.kill()
                process.wait()
