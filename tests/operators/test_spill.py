"""Outputs that wait for a reader over TCP leave memory, and come back from the journal when it does."""

import contextlib
import socket
import time
from contextlib import closing
from random import Random

import pytest

from safekeeper import Batch, CheckpointId, Corruption, Every, Gone
from safekeeper.journal import image
from safekeeper.keeper.lanes import Bounds
from safekeeper.operators import Operator
from safekeeper.streams import open_inlet
from safekeeper.testing.peer import PATIENCE

from .streams import MemoryStream

HOLD = 40
MANY = 1000


@pytest.fixture
def place():
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}/counts"


def doubler(store, url, readers=("slow",), **settings):
    return Operator(
        *("doubler", store),
        outputs={"counts": url},
        readers={"counts": list(readers)},
        hold=Bounds(HOLD),
        linger=0.0,
        **settings,
    )


def take(operator, first, last):
    for number in range(first, last + 1):
        with operator.event("in", number) as event:
            part = event.part(b"%d" % (number % 3), int)
            part.state += 1
            event.emit("counts", b"%d %d" % (number, part.state), key=b"k%d" % number)


def expected(last):
    return [b"%d %d" % (number, (number - 1) // 3 + 1 if number % 3 else number // 3) for number in range(1, last + 1)]


def read(inlet, count):
    found, give_up = [], time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < give_up, f"{len(found)} of {count}"
        found += inlet.read(timeout=0.5)
    return found


def in_memory(operator):
    return len(operator._pump._outlets["counts"]._stream.retained)


def confirmed(operator):
    return operator._core.streams["counts"].confirmed


def blocks(operator):
    return len(list(operator._backend.keys("doubler")))


def until(check):
    give_up = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@pytest.mark.parametrize("release", ["durable", "at-once"])
def test_a_reader_that_is_away_takes_no_memory_and_stops_nobody(tmp_path, place, release, caplog):
    settings = {"release": release, "kind": "deterministic"}
    if release == "at-once":
        settings["capture"] = Every(events=5)
    with doubler(f"log://{tmp_path}", place, **settings) as operator:
        take(operator, 1, MANY)
        operator.flush()
        until(lambda: in_memory(operator) <= HOLD)
        assert "reader slow has acknowledged 0 of" in caplog.text
        with closing(open_inlet(place, reader="slow", after=0)) as slow:
            found = read(slow, MANY)
            assert [element.number for element in found] == list(range(1, MANY + 1))
            assert [element.body for element in found] == expected(MANY)
            assert found[17].key == b"k18"
            slow.acknowledge(MANY)
            until(lambda: confirmed(operator) == MANY)
            take(operator, MANY + 1, MANY + 20)
            assert [element.body for element in read(slow, 20)] == expected(MANY + 20)[MANY:]
            slow.acknowledge(MANY + 20)
            until(lambda: confirmed(operator) == MANY + 20)
            take(operator, MANY + 21, MANY + 21)
            operator.flush()
            until(lambda: blocks(operator) < 10)  # nobody needs the others
        held = operator._core.streams["counts"]
        assert held.bytes_in_memory == held.held_bytes <= 20


@pytest.mark.parametrize("most", [10, 100_000])
def test_what_was_spilled_is_there_after_a_restart(tmp_path, place, monkeypatch, most):
    monkeypatch.setattr(image, "_OUTPUTS", most)
    with doubler(f"log://{tmp_path}", place) as operator:
        take(operator, 1, MANY)
    with doubler(f"log://{tmp_path}", place) as operator:
        until(lambda: in_memory(operator) <= HOLD)
        with closing(open_inlet(place, reader="slow")) as slow:
            take(operator, MANY + 1, MANY + 100)
            assert [element.body for element in read(slow, MANY + 100)] == expected(MANY + 100)
            slow.acknowledge(MANY // 2)
            until(lambda: confirmed(operator) == MANY // 2)
    with (
        doubler(f"log://{tmp_path}", place) as operator,
        closing(open_inlet(place, reader="slow", after=MANY // 2)) as slow,
    ):
        assert [element.body for element in read(slow, MANY // 2 + 100)] == expected(MANY + 100)[MANY // 2 :]


def test_an_operator_stops_with_one_error_if_what_a_reader_wants_is_damaged_in_the_journal(tmp_path, place):
    with contextlib.suppress(Corruption), doubler(f"log://{tmp_path}", place) as operator:
        take(operator, 1, MANY)
        operator.flush()
        until(lambda: in_memory(operator) <= HOLD)
        first = min(operator._backend.keys("doubler"))
        operator._backend.write(Batch({CheckpointId("doubler", first): b"damaged"}))
        with closing(open_inlet(place, reader="slow", after=0)) as slow:
            assert slow.read(timeout=1) == []
            until(lambda: operator._failure is not None)
        with pytest.raises(Corruption, match="not a block of a journal"):
            operator.flush()


def test_outlets_that_cannot_do_with_less_get_everything_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(image, "_OUTPUTS", 5)
    lost = MemoryStream(retains=False)
    with doubler(f"log://{tmp_path}", lost) as operator:
        take(operator, 1, HOLD - 1)
    again = MemoryStream(retains=False)
    with doubler(f"log://{tmp_path}", again) as operator:
        operator.flush()
        assert again.bodies == expected(HOLD - 1)


def test_a_reader_that_never_comes_back_is_dropped_when_it_may_be(tmp_path, place, caplog):
    url = f"{place}?max-elements=200&when-full=drop-reader"
    with doubler(f"log://{tmp_path}", url, readers=("slow", "quick")) as operator:
        with closing(open_inlet(url, reader="quick")) as quick:
            for begin in range(1, MANY, 100):
                take(operator, begin, begin + 99)
                quick.acknowledge(read(quick, 100)[-1].number)
                until(lambda: operator._pump._outlets["counts"].acknowledged()["quick"] == begin + 99)  # noqa: B023
            assert "drops its reader slow" in caplog.text
            until(lambda: confirmed(operator) == MANY)
            take(operator, MANY + 1, MANY + 1)
            operator.flush()
            until(lambda: blocks(operator) < 10)
        with closing(open_inlet(url, reader="slow")) as slow, pytest.raises(Gone, match="dropped for being too far"):
            slow.read(timeout=PATIENCE)


def test_readers_that_come_and_go_get_everything_once_and_in_order(tmp_path, place, monkeypatch):
    monkeypatch.setattr(image, "_OUTPUTS", 30)
    random = Random(7)
    done = {"slow": 0, "quick": 0}
    taken = 0
    for _ in range(4):
        with doubler(f"log://{tmp_path}", place, readers=list(done)) as operator:
            for _ in range(6):
                more = random.randrange(1, 150)
                take(operator, taken + 1, taken + more)
                taken += more
                name = random.choice(list(done))
                with closing(open_inlet(place, reader=name, after=done[name])) as inlet:
                    wanted = random.randrange(taken - done[name] + 1)
                    found = read(inlet, wanted)
                    assert [element.body for element in found] == expected(taken)[done[name] :][: len(found)]
                    if random.random() < 0.7 and found:
                        done[name] = found[random.randrange(len(found))].number
                        inlet.acknowledge(done[name])
                        inlet.last()  # an answer says that it was heard
    with doubler(f"log://{tmp_path}", place, readers=list(done)):
        for name, upto in done.items():
            with closing(open_inlet(place, reader=name, after=upto)) as inlet:
                assert [element.body for element in read(inlet, taken - upto)] == expected(taken)[upto:]
