"""The kit for carriers: what carries a stream inherits `StreamContract` and is proved.

class TestMine(StreamContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"mine:{tmp_path}/x?stream=words"
"""

from __future__ import annotations

import itertools
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from random import Random
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from safekeeper.errors import BadUrl, Closed, Gone, QueueFull, SafekeeperError
from safekeeper.streams import Inlet, Outlet, StreamElement, open_inlet, open_outlet
from safekeeper.testing.contract.base import LONG
from safekeeper.testing.contract.crash import crash_test
from safekeeper.testing.peer import PATIENCE, start_python
from safekeeper.testing.sending import drain, elements_from, numbered

AWKWARD = (b"", b"\0", b"\r\n$3\r\n", b"\xff" * 300, b"body", "ü".encode())


class StreamContract:
    """Tests of a carrier. A subclass gives the fixture `url`: a stream that nobody has written to yet."""

    examples: int = 25
    """How many histories the model tries."""
    kills: int = 3
    """How many times a producer is killed."""
    long_kills: int = 30
    """The same with SAFEKEEPER_TEST_LEVEL=long."""
    with_options: bool = True
    """Whether it takes `max-elements=` and `when-full=`."""
    direct: bool = False
    """Whether producer and readers are connected to each other, and nothing stands between: the producer retains what
    it has sent, elements travel before they are asked for, and an acknowledgement arrives a moment later."""

    @pytest.fixture
    def url(self) -> str:
        """The URL of a stream that nobody has written to yet. It ends with the stream's name."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'url': the URL of a fresh stream")

    def acknowledged(self, outlet: Outlet, expected: dict[str, int]) -> Mapping[str, int]:
        """What the readers of *outlet* have acknowledged, when that has arrived."""
        return _acknowledged(outlet, expected, self.direct)

    def another(self, url: str) -> str:
        """The URL of another fresh stream at the same place."""
        return f"{url}-{secrets.token_hex(6)}"

    @pytest.fixture
    def outlet(self, url: str) -> Iterator[Callable[..., Outlet]]:
        """Opens the producing side; everything is closed after the test."""
        with ExitStack() as stack:
            yield lambda *readers, **settings: stack.enter_context(
                closing(open_outlet(url, readers=readers, **settings))
            )

    @pytest.fixture
    def inlet(self, url: str) -> Iterator[Callable[..., Inlet]]:
        """Opens the reading side; everything is closed after the test."""
        with ExitStack() as stack:
            yield lambda reader=None, after=None: stack.enter_context(
                closing(open_inlet(url, reader=reader, after=after))
            )

    def test_elements_arrive_in_order_with_their_keys(self, outlet: Any, inlet: Any) -> None:
        sent = [StreamElement(n, body, key) for n, (body, key) in enumerate(itertools.product(AWKWARD, AWKWARD), 1)]
        outlet("r").send(sent[:10])
        outlet("r").send(sent[10:])
        assert drain(inlet("r"), len(sent)) == sent

    def test_many_elements_arrive_once_and_in_order(self, outlet: Any, inlet: Any) -> None:
        sent = numbered(1, *(b"%d" % n for n in range(5_000)))
        out = outlet("r")
        reading = inlet("r")
        for start in range(0, len(sent), 777):
            out.send(sent[start : start + 777])
        arrived = drain(reading, len(sent))
        assert len(arrived) == len(sent)
        wrong = [at for at, pair in enumerate(zip(arrived, sent, strict=True)) if pair[0] != pair[1]]
        assert wrong[:1] == [], f"element {wrong[0] + 1} arrived as {arrived[wrong[0]]}"  # a diff of all takes minutes
        assert reading.read(timeout=0) == []

    def test_large_elements_arrive(self, outlet: Any, inlet: Any) -> None:
        sent = numbered(1, *(Random(n).randbytes(700_000) for n in range(5)))  # noqa: S311
        outlet("r").send(sent)
        assert drain(inlet("r"), 5) == sent

    def test_a_stream_that_nobody_has_written_to_has_nothing(self, outlet: Any, inlet: Any) -> None:
        reading = inlet("r")
        assert reading.read(timeout=0) == []
        assert reading.last() is None
        assert outlet("r").last == 0
        assert inlet("r").read(timeout=0.01) == []

    def test_a_reader_that_came_first_gets_everything(self, outlet: Any, inlet: Any) -> None:
        reading = inlet("r")
        assert reading.read(timeout=0) == []
        outlet("r").send(sent := numbered(1, b"a", b"b"))
        assert drain(reading, 2) == sent

    def test_what_is_sent_again_is_there_once(self, outlet: Any, inlet: Any) -> None:
        out = outlet("r")
        out.send(numbered(1, b"a", b"b", b"c"))
        out.send(numbered(2, b"b", b"c", b"d"))
        again = outlet("r")
        again.send(numbered(1, b"a", b"b", b"c", b"d", b"e"))
        again.send(numbered(1, b"a"))
        assert again.last == 5
        assert drain(inlet("r"), 5) == numbered(1, b"a", b"b", b"c", b"d", b"e")

    def test_what_is_sent_again_is_there_once_also_after_all_was_trimmed(self, outlet: Any, inlet: Any) -> None:
        out = outlet("r")
        out.send(sent := numbered(1, b"a", b"b", b"c"))
        with closing(inlet("r")) as reading:
            drain(reading, 3)
            reading.acknowledge(3)
        assert self.acknowledged(out, {"r": 3}) == {"r": 3}
        again = outlet("r")
        assert again.last == 3
        again.send(sent)
        again.send(numbered(4, b"d"))
        assert drain(inlet("r"), 1) == numbered(4, b"d")

    def test_a_stopped_producer_that_comes_back_does_no_harm(self, outlet: Any, inlet: Any) -> None:
        stopped = outlet("r")
        stopped.send(numbered(1, b"a"))
        successor = outlet("r")
        successor.send(numbered(2, b"b", b"c", b"d"))
        stopped.send(numbered(2, b"b", b"c"))
        successor.send(numbered(5, b"e"))
        assert drain(inlet("r"), 5) == numbered(1, b"a", b"b", b"c", b"d", b"e")

    @pytest.mark.parametrize(
        "numbers",
        [(1, 3), (2, 1), (0, 1), (-1, 0), ((1, 0), (2, 0))],
        ids=["gap", "back", "zero", "negative", "tuples"],
    )
    def test_numbers_that_do_not_follow_one_another_are_refused(self, outlet: Any, inlet: Any, numbers: Any) -> None:
        out = outlet("r")
        with pytest.raises(ValueError, match="numbered without gaps"):
            out.send([StreamElement(number, b"") for number in numbers])
        assert out.last == 0
        assert inlet("r").read(timeout=0) == []

    def test_a_gap_between_the_stream_and_what_is_sent_is_refused(self, outlet: Any, inlet: Any) -> None:
        out = outlet("r")
        out.send(numbered(1, b"a"))
        with pytest.raises(Gone, match="ends at 1"):
            out.send(numbered(3, b"c"))
        with pytest.raises(Gone, match="ends at 1"):
            outlet("r").send(numbered(3, b"c"))
        out.send(numbered(2, b"b", b"c"))
        assert drain(inlet("r"), 3) == numbered(1, b"a", b"b", b"c")

    def test_a_new_stream_begins_after_what_all_have_acknowledged(self, outlet: Any, inlet: Any) -> None:
        with pytest.raises(Gone):
            outlet("r").send(numbered(8, b"h"))
        outlet("r", floor=7).send(numbered(8, b"h"))
        assert drain(inlet("r", after=7), 1) == numbered(8, b"h")

    def test_a_reader_goes_on_after_its_position(self, outlet: Any, inlet: Any) -> None:
        outlet("r").send(sent := numbered(1, *(b"%d" % n for n in range(10))))
        for after in (0, 3, 9):
            assert drain(inlet("r", after=after), 10 - after) == sent[after:]
        assert inlet("r", after=10).read(timeout=0) == []
        assert inlet("r").last() == 10

    def test_a_reader_goes_on_after_what_it_has_acknowledged(self, outlet: Any, inlet: Any) -> None:
        outlet("r", "other").send(sent := numbered(1, b"a", b"b", b"c"))
        with closing(inlet("r")) as reading:
            assert drain(reading, 3) == sent
            reading.acknowledge(2)
        assert drain(inlet("r"), 1) == sent[2:]
        assert drain(inlet("other"), 3) == sent

    def test_acknowledgements_never_go_back(self, outlet: Any, inlet: Any) -> None:
        out = outlet("r", "other")
        out.send(numbered(1, b"a", b"b", b"c"))
        one, two = inlet("r"), inlet("r")
        two.acknowledge(1)
        one.acknowledge(3)
        one.acknowledge(2)
        two.acknowledge(2)
        assert self.acknowledged(out, {"r": 3, "other": 0}) == {"r": 3, "other": 0}
        assert outlet("r", "other").acknowledged() == {"r": 3, "other": 0}

    def test_elements_are_retained_until_every_reader_has_them(self, outlet: Any, inlet: Any) -> None:
        out, sent = outlet("quick", "slow"), numbered(1, b"a", b"b", b"c", b"d")
        for element in sent:
            out.send([element])
        inlet("quick").acknowledge(4)
        assert self.acknowledged(out, {"quick": 4, "slow": 0}) == {"quick": 4, "slow": 0}
        assert drain(inlet("slow"), 4) == sent
        inlet("slow").acknowledge(1)
        assert self.acknowledged(out, {"quick": 4, "slow": 1}) == {"quick": 4, "slow": 1}
        assert drain(inlet("slow"), 3) == sent[1:]

    def test_what_every_reader_has_acknowledged_is_gone(self, outlet: Any, inlet: Any) -> None:
        out = outlet("a", "b")
        for number in range(1, 7):
            out.send(numbered(number, b"%d" % number))
        inlet("a").acknowledge(5)
        inlet("b").acknowledge(4)
        assert self.acknowledged(out, {"a": 5, "b": 4}) == {"a": 5, "b": 4}
        with pytest.raises(Gone, match="begin after 4"):
            inlet("a", after=2).read(timeout=0)
        assert drain(inlet("b", after=4), 2) == numbered(5, b"5", b"6")

    def test_a_reader_under_which_elements_are_trimmed_is_told(self, outlet: Any, inlet: Any) -> None:
        out = outlet("r")
        out.send(numbered(1, b"a"))
        reading = inlet("r")
        drain(reading, 1)
        for number in range(2, 6):
            out.send(numbered(number, b"x"))
        inlet("r").acknowledge(4)  # somebody else who goes by the same name
        assert self.acknowledged(out, {"r": 4}) == {"r": 4}
        if self.direct:  # they were on their way
            assert drain(reading, 4) == numbered(2, b"x", b"x", b"x", b"x")
            return
        with pytest.raises(Gone, match="begin after 4"):
            reading.read(timeout=0)

    def test_a_reader_that_is_not_declared_is_told(self, outlet: Any, inlet: Any) -> None:
        outlet("a", "b").send(numbered(1, b"x"))
        with pytest.raises(Gone, match="its producer has a, b"):
            inlet("c").read(timeout=0)
        outlet("a", "b", "c")
        assert drain(inlet("c"), 1) == numbered(1, b"x")

    def test_without_readers_nothing_is_trimmed(self, outlet: Any, inlet: Any) -> None:
        out = outlet()
        out.send(sent := numbered(1, b"a", b"b"))
        inlet("somebody").acknowledge(2)
        assert out.acknowledged() == {}
        assert drain(inlet(), 2) == sent
        assert drain(inlet("somebody", after=0), 2) == sent

    def test_who_only_looks_cannot_acknowledge(self, outlet: Any, inlet: Any) -> None:
        out = outlet("r")
        out.send(numbered(1, b"a", b"b"))
        out.send(numbered(3, b"c"))
        inlet("r").acknowledge(2)
        assert self.acknowledged(out, {"r": 2}) == {"r": 2}
        looking = inlet()
        assert drain(looking, 1) == numbered(3, b"c")
        with pytest.raises(ValueError, match="only looks"):
            looking.acknowledge(3)

    def test_a_position_behind_the_end_is_refused(self, outlet: Any, inlet: Any) -> None:
        outlet("r").send(numbered(1, b"a"))
        if self.direct:  # the producer may be about to send again what it had sent before it was killed
            assert inlet("r", after=5).read(timeout=0) == []
            return
        with pytest.raises(Gone, match="ends at 1, before the position 5"):
            inlet("r", after=5).read(timeout=0)

    def test_a_reader_waits_for_what_comes(self, outlet: Any, inlet: Any) -> None:
        reading, out = inlet("r"), outlet("r")
        later = threading.Timer(0.2, out.send, [numbered(1, b"a")])
        later.start()
        assert reading.read(timeout=PATIENCE) == numbered(1, b"a")
        later.join()

    def test_closing_ends_a_read_that_waits(self, inlet: Any) -> None:
        reading = inlet("r")
        problems: list[BaseException] = []

        def wait() -> None:
            try:
                reading.read()
            except SafekeeperError as error:
                problems.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        time.sleep(0.05)
        reading.close()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        assert [type(problem) for problem in problems] == [Closed]

    def test_a_closed_side_raises_closed(self, outlet: Any, inlet: Any) -> None:
        out, reading = outlet("r"), inlet("r")
        for side in (out, reading):
            side.close()
            side.close()
        for call in (
            lambda: out.send(numbered(1, b"a")),
            out.acknowledged,
            lambda: reading.read(timeout=0),
            lambda: reading.acknowledge(1),
            reading.last,
        ):
            with pytest.raises(Closed):
                call()

    def test_several_threads_send_and_read_at_once(self, outlet: Any, inlet: Any) -> None:
        out, sent = outlet("r"), numbered(1, *(b"%d" % n for n in range(300)))
        readings = [inlet("r") for _ in range(3)]
        found: list[list[StreamElement]] = []
        threads = [threading.Thread(target=lambda r=r: found.append(drain(r, len(sent)))) for r in readings]
        for thread in threads:
            thread.start()
        for start in range(0, len(sent), 10):
            out.send(sent[: start + 10][-30:])
        for thread in threads:
            thread.join()
        assert found == [sent] * 3

    def test_an_unknown_option_is_refused(self, url: str) -> None:
        mark = "&" if "?" in url else "?"
        for opener in (open_outlet, open_inlet):
            with pytest.raises(BadUrl, match="nonsense"):
                opener(f"{url}{mark}nonsense=1")

    def test_a_reader_that_is_too_far_behind_stops_the_producer(self, url: str) -> None:
        self._skip_without_options()
        url = f"{self.another(url)}&max-elements=3"
        with closing(open_outlet(url, readers=["r", "q"])) as out, closing(open_inlet(url, reader="r")) as reading:
            out.send(numbered(1, b"a", b"b", b"c"))
            with pytest.raises(QueueFull, match="holds 4 elements"):
                out.send(numbered(4, b"d"))
            drain(reading, 3)
            reading.acknowledge(2)
            self.acknowledged(out, {"r": 2, "q": 0})
            with pytest.raises(QueueFull, match="its reader q"):
                out.send(numbered(4, b"d"))
            with closing(open_inlet(url, reader="q")) as other:
                other.acknowledge(1)
            self.acknowledged(out, {"r": 2, "q": 1})
            out.send(numbered(4, b"d"))
            assert drain(reading, 1) == numbered(4, b"d")

    def test_a_reader_that_is_too_far_behind_is_dropped_if_asked_for(self, url: str) -> None:
        self._skip_without_options()
        url = f"{self.another(url)}&max-elements=3&when-full=drop-reader"
        with closing(open_outlet(url, readers=["r", "q"])) as out, closing(open_inlet(url, reader="r")) as reading:
            out.send(numbered(1, b"a", b"b", b"c"))
            drain(reading, 3)
            reading.acknowledge(3)
            self.acknowledged(out, {"r": 3, "q": 0})
            out.send(numbered(4, b"d"))
            assert out.acknowledged() == {"r": 3}
            with closing(open_inlet(url, reader="q")) as dropped, pytest.raises(Gone):
                dropped.read(timeout=0)
            assert drain(reading, 1) == numbered(4, b"d") or reading.read(timeout=0) == []

    def _skip_without_options(self) -> None:
        if not self.with_options:
            pytest.skip("this carrier has no max-elements=")

    @crash_test
    def test_a_producer_that_is_killed_loses_and_repeats_nothing(self, url: str) -> None:
        seed = secrets.randbits(32)
        print(f"seed {seed}")
        random = Random(seed)  # noqa: S311
        seen: list[StreamElement] = []
        with closing(open_inlet(url, reader="r")) as reading:
            done = 0
            for _ in range(self.long_kills if LONG else self.kills):
                confirmed = self._send_and_kill(url, random, done)
                seen += self._all_that_is_there(reading)
                if not self.direct:
                    assert seen[:confirmed] == elements_from(1, confirmed), "what was confirmed has not arrived"
                assert seen == elements_from(1, len(seen))
                done = random.randint(done, max(done, len(seen)))
                reading.acknowledge(done)
            floor = done if self.direct else 0
            with closing(open_outlet(url, readers=["r"], floor=floor)) as out:
                if self.direct:
                    out.send(elements_from(floor + 1, len(seen) - floor))
                assert out.last >= len(seen)  # what was not confirmed may become visible by the next write
                out.send(elements_from(out.last + 1, 10))
                count = out.last
                seen += self._all_that_is_there(reading)
        assert seen == elements_from(1, count)

    def _send_and_kill(self, url: str, random: Random, done: int) -> int:
        """Let a process send and kill it; up to which element it was confirmed. Up to *done* all was acknowledged."""
        wanted = int(50 ** random.random())
        with start_python(
            *("safekeeper.testing.sending", url, str(random.randrange(1 << 30)), str(done if self.direct else 0)),
            stdout=subprocess.PIPE,
        ) as p:
            assert p.stdout is not None
            try:
                told = [p.stdout.readline() for _ in range(wanted)]
                time.sleep(random.random() * 0.01)
            finally:
                p.kill()
            told += p.stdout.readlines()
        whole = [line for line in told if line.endswith(b"\n")]
        assert whole, "the producer ended by itself: its standard error says why"
        return int(whole[-1])

    def _all_that_is_there(self, reading: Inlet) -> list[StreamElement]:
        last = reading.last()
        found: list[StreamElement] = []
        give_up = time.monotonic() + PATIENCE
        while some := reading.read(timeout=0.5):
            found += some
            assert time.monotonic() < give_up
        assert self.direct or not last or not found or found[-1].number == last
        return found

    def test_any_history_gives_what_a_list_gives(self, url: str) -> None:
        """Sends that repeat, readers that come and go, acknowledgements, in any order."""
        steps = strategies.lists(
            strategies.tuples(
                strategies.sampled_from(("send", "send", "reopen", "read", "acknowledge", "return", "let go")),
                strategies.integers(0, 5),
                strategies.sampled_from(("a", "b")),
            ),
            max_size=40,
        )

        @hypothesis.settings(
            max_examples=self.examples, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        @hypothesis.given(steps)
        def check(history: Sequence[tuple[str, int, str]]) -> None:
            with _History(self.another(url), self.direct) as running:
                for step, amount, reader in history:
                    running.do(step, amount, reader)
                running.check()

        check()


def _acknowledged(outlet: Outlet, expected: Mapping[str, int], later: bool) -> Mapping[str, int]:
    """What the readers have acknowledged; where that takes a moment, when it is what is *expected*."""
    give_up = time.monotonic() + PATIENCE
    while (found := outlet.acknowledged()) != expected and later and time.monotonic() < give_up:
        time.sleep(0.001)
    return found


class _History:
    """A stream with two readers, and what must be true of it."""

    def __init__(self, url: str, direct: bool) -> None:
        self._url, self._direct = url, direct
        self._sent: list[StreamElement] = []
        self._read = {"a": 0, "b": 0}
        self._acknowledged = {"a": 0, "b": 0}
        self._stack = ExitStack()
        self._outlet = self._open_outlet()
        self._inlets = {reader: self._open_inlet(reader) for reader in self._read}

    def __enter__(self) -> _History:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open_outlet(self) -> Outlet:
        return self._stack.enter_context(closing(open_outlet(self._url, readers=list(self._read))))

    def _open_inlet(self, reader: str) -> Inlet:
        return self._stack.enter_context(closing(open_inlet(self._url, reader=reader)))

    def do(self, step: str, amount: int, reader: str) -> None:
        """One step of the history, checked where it can be."""
        if step == "send":
            start = max(0, len(self._sent) - amount)
            new = [StreamElement(len(self._sent) + n, secrets.token_bytes(3)) for n in range(1, amount + 1)]
            self._sent += new
            self._outlet.send(self._sent[start:])
            assert self._outlet.last == len(self._sent)
        elif step == "reopen":
            self._outlet = self._open_outlet()
            assert self._outlet.last == len(self._sent)
        elif step == "read":
            found = self._inlets[reader].read(timeout=0)
            start = self._read[reader]
            assert found == self._sent[start : start + len(found)]
            assert found or start == len(self._sent)
            self._read[reader] += len(found)
        elif step == "acknowledge":
            upto = max(self._acknowledged[reader], self._read[reader] - amount)
            self._inlets[reader].acknowledge(upto)
            self._acknowledged[reader] = upto
        elif step == "return":
            self._inlets[reader].close()
            self._inlets[reader] = self._open_inlet(reader)
            self._read[reader] = self._acknowledged[reader]
        else:
            self._check_acknowledged()

    def _check_acknowledged(self) -> None:
        expected = self._acknowledged
        assert _acknowledged(self._outlet, expected, self._direct) == expected

    def check(self) -> None:
        """What must be true in the end: each reader gets the rest."""
        self._check_acknowledged()
        for reader, inlet in self._inlets.items():
            assert drain(inlet, len(self._sent) - self._read[reader]) == self._sent[self._read[reader] :]
