"""An operator with its journal and streams: driven by a thread, by asyncio and by the author's own loop."""

# ruff: noqa: PT012, SIM117  (what happens inside of these blocks, and how they are nested, is what is tested)
import asyncio
import threading
import time

import pytest

from safekeeper import BadState, Bounds, CheckpointId, Closed, Conflict, Diverged, Every, Gone, SafeKeeper, Unavailable
from safekeeper.backends.memory import MemoryBackend
from safekeeper.operators import Operator
from safekeeper.operators.pump import Pump
from safekeeper.policy import Choice, Eventual
from safekeeper.testing import Faulty

from .streams import MemoryStream

WORDS = b"to be or not to be that is the question".split()


@pytest.fixture
def store():
    with MemoryBackend() as store:
        yield store


def counts(words):
    seen = {}
    for word in words:
        seen[word] = seen.get(word, 0) + 1
        yield b"%s %d" % (word, seen[word])


def count(operator, event):
    part = operator.part(event.key)
    part.state["n"] = part.state.get("n", 0) + 1
    operator.emit("counts", key=event.key, body=b"%s %d" % (event.key, part.state["n"]))


def until(condition, timeout=60.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class TestByIteration:
    def operator(self, store, words, out, **settings):
        return Operator("counter", store, inputs={"words": words.inlet}, outputs={"counts": out}, **settings)

    def test_a_thread(self, store):
        words, out = MemoryStream(WORDS), MemoryStream()
        with self.operator(store, words, out) as counter:
            for event in counter:
                count(counter, event)
                if event.position == len(WORDS):
                    counter.stop()
        assert out.bodies == list(counts(WORDS))
        assert words.acknowledgements["reader"] == len(WORDS)

    def test_asyncio(self, store):
        words, out = MemoryStream(WORDS), MemoryStream()

        async def main():
            async with self.operator(store, words, out) as counter:
                async for event in counter:
                    count(counter, event)
                    if event.position == len(WORDS):
                        counter.stop()

        asyncio.run(main())
        assert out.bodies == list(counts(WORDS))

    @pytest.mark.parametrize("where", ["in an event", "while it waits"])
    def test_a_cancelled_task_loses_nothing_and_does_nothing_twice(self, store, where):
        words, out = MemoryStream(WORDS), MemoryStream()

        async def work(reached, last):
            async with self.operator(store, words, out) as counter:
                async for event in counter:
                    count(counter, event)
                    if event.position == last and where == "in an event":
                        reached.set()
                        await asyncio.sleep(60)
                    elif event.position == last:
                        reached.set()

        async def main(last):
            reached = asyncio.Event()
            task = asyncio.create_task(work(reached, last))
            await reached.wait()
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main(4))
        words.append(b"that", b"is", b"all")
        asyncio.run(main(len(WORDS) + 3))
        with self.operator(store, words, out) as counter:
            while counter.events < len(WORDS) + 3:
                with next(counter) as event:
                    count(counter, event)
        assert out.bodies == list(counts([*WORDS, b"that", b"is", b"all"]))

    def test_a_cancellation_that_comes_with_a_ring_is_not_lost(self, store):
        running = []

        async def work():
            async with self.operator(store, MemoryStream(), MemoryStream()) as counter:
                running.append(counter)
                async for event in counter:
                    count(counter, event)

        async def main():
            task = asyncio.create_task(work())
            while not running:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            running[0]._loop_bell.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(20):
                    await task

        asyncio.run(main())

    @pytest.mark.parametrize("capture", [Every(events=1), None], ids=["by the loop", "by the pump"])
    def test_a_full_queue_does_not_keep_the_loop_waiting(self, store, capture):
        faulty, words, out = Faulty(store), MemoryStream(WORDS), MemoryStream()

        async def main(keeper):
            async with self.operator(keeper, words, out, capture=capture) as counter:
                with faulty.hold("write") as gate:
                    keeper.save(CheckpointId("other", b"written"), 1)
                    await asyncio.to_thread(gate.wait_for, 1)
                    keeper.save(CheckpointId("other", b"queued"), 1)  # now there is no room
                    too_late = threading.Timer(30, gate.release)  # a loop that waits could not do it
                    too_late.start()
                    async for event in counter:
                        count(counter, event)
                        await asyncio.sleep(0.005)
                        if event.position == len(WORDS):
                            counter.stop()
                    assert counter._journal.in_flight, "something was appended"
                    assert too_late.is_alive()
                    too_late.cancel()

        with SafeKeeper(faulty, overflow="block", storage_queue=Bounds(count=1)) as keeper:
            asyncio.run(main(keeper))
        assert out.bodies == list(counts(WORDS))

    def test_outputs_leave_when_no_event_comes(self, store):
        words, out = MemoryStream(WORDS[:3]), MemoryStream()

        def work():
            with self.operator(store, words, out) as counter:
                running.append(counter)
                for event in counter:
                    count(counter, event)

        running = []
        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: out.last == 3)
        words.append(*WORDS[3:])
        until(lambda: out.last == len(WORDS))
        running[0].stop()
        thread.join()
        assert out.bodies == list(counts(WORDS))

    def test_it_goes_on_where_it_was(self, store):
        words, out = MemoryStream(WORDS), MemoryStream()
        for stop in (3, 4, len(WORDS)):
            with self.operator(store, words, out) as counter:
                for event in counter:
                    count(counter, event)
                    if event.position == stop:
                        counter.stop()
        assert out.bodies == list(counts(WORDS))

    def test_an_event_that_nobody_finished_comes_again(self, store):
        words, out = MemoryStream(WORDS), MemoryStream()
        with self.operator(store, words, out) as counter:
            for event in counter:
                count(counter, event)
                if event.position == 4:
                    break
        assert out.last < 4
        with self.operator(store, words, out) as counter:
            for event in counter:
                count(counter, event)
                if event.position == len(WORDS):
                    counter.stop()
        assert out.bodies == list(counts(WORDS))

    def test_what_nobody_finished_is_in_no_block(self, store, monkeypatch):
        """Whatever the pump still does meanwhile."""
        words, out = MemoryStream(WORDS), MemoryStream()
        stop = Pump.stop

        def late(pump):
            pump._operator.append_if_idle()
            stop(pump)

        monkeypatch.setattr(Pump, "stop", late)
        capture = WhenTold()
        with self.operator(store, words, out, capture=capture) as counter:
            for event in counter:
                count(counter, event)
                if event.position == 4:
                    capture.told = True
                    break
        assert list(store.keys("counter")) == []

    def test_an_event_that_raises_stops_it_and_nothing_of_it_is_kept(self, store):
        words, out = MemoryStream(WORDS), MemoryStream()
        with pytest.raises(ZeroDivisionError), self.operator(store, words, out) as counter:
            for event in counter:
                count(counter, event)
                if event.position == 4:
                    raise ZeroDivisionError
        with self.operator(store, words, out) as counter:
            for event in counter:
                count(counter, event)
                if event.position == len(WORDS):
                    counter.stop()
        assert out.bodies == list(counts(WORDS))

    def test_a_stopped_operator_says_so(self, store):
        words, out = MemoryStream(WORDS), MemoryStream()
        with pytest.raises(ZeroDivisionError), self.operator(store, words, out) as counter:
            for event in counter:
                with pytest.raises(ZeroDivisionError), event:
                    raise ZeroDivisionError
                with pytest.raises(Closed, match="ZeroDivisionError"):
                    next(counter)
                break

    def test_a_poison_event_is_put_back_and_reported(self, store):
        words, out, errors = MemoryStream(WORDS), MemoryStream(), []

        def on_error(event, error):
            errors.append((event.position, str(error)))
            event.emit("counts", b"poison")

        with self.operator(store, words, out, undo=True, on_error=on_error) as counter:
            for event in counter:
                with event:
                    count(counter, event)
                    if event.position == 5:
                        counter.part(b"another")
                        raise ValueError("that one")
                if event.position == len(WORDS):
                    counter.stop()
            assert counter.look(b"another") is None
        expected = [b"poison" if at == 4 else word for at, word in enumerate(counts([*WORDS[:4], b"?", *WORDS[5:]]))]
        assert (out.bodies, errors) == (expected, [(5, "that one")])

    def test_an_undone_event_without_an_answer_comes_again(self, store):
        words, out, tries = MemoryStream(WORDS), MemoryStream(), []
        with self.operator(store, words, out, undo=True) as counter:
            while True:
                try:
                    with next(counter) as event:
                        count(counter, event)
                        tries.append(event.position)
                        if tries.count(5) in (1, 2) and event.position == 5:
                            raise ValueError
                except ValueError:
                    continue
                if event.position == len(WORDS):
                    break
        assert out.bodies == list(counts(WORDS))
        assert tries.count(5) == 3

    def test_two_inputs(self, store):
        one, two, out = MemoryStream(WORDS), MemoryStream(WORDS), MemoryStream()
        with Operator("counter", store, inputs={"a": one.inlet, "b": two.inlet}, outputs={"counts": out}) as counter:
            for event in counter:
                count(counter, event)
                if counter.events == 2 * len(WORDS) - 1:
                    counter.stop()
        assert len(out.bodies) == 2 * len(WORDS)
        assert set(out.bodies) == set(counts(WORDS + WORDS))

    def test_an_input_that_cannot_be_opened_leaves_nothing_behind(self, store):
        def fail(after):
            raise Unavailable("away")

        words = MemoryStream(WORDS)
        before = threading.active_count()
        with pytest.raises(Unavailable, match="away"):
            with Operator("counter", store, inputs={"words": words.inlet, "more": fail}):
                pass
        until(lambda: threading.active_count() <= before)

    def test_an_input_that_fails_stops_it(self, store):
        class Failing(MemoryStream):
            def inlet(self, after):
                inlet = super().inlet(after)
                inlet.read = fail
                return inlet

        def fail(timeout=None):
            raise Gone("elements 1 to 7 are gone")

        with pytest.raises(Gone, match="input words: elements 1 to 7 are gone"):
            with self.operator(store, Failing(), MemoryStream()) as counter:
                next(counter)

    def test_the_store_may_be_a_keeper_that_several_share(self, store):
        words, outs = MemoryStream(WORDS), [MemoryStream(), MemoryStream()]
        with SafeKeeper(store) as keeper:
            operators = [
                Operator(f"counter{at}", keeper, inputs={"words": words.inlet}, outputs={"counts": out})
                for at, out in enumerate(outs)
            ]
            for operator in operators:
                with operator:
                    for event in operator:
                        count(operator, event)
                        if event.position == len(WORDS):
                            operator.stop()
        assert outs[0].bodies == outs[1].bodies == list(counts(WORDS))


class TestByTheAuthorsLoop:
    def take(self, operator, words, after=0):
        for position, word in enumerate(words, 1):
            if position > after:
                with operator.event("words", position, key=word) as event:
                    count(operator, event)

    def test_events_with_positions(self, store):
        out, durable = MemoryStream(), []
        with Operator("c", store, outputs={"counts": out}, on_durable=durable.append) as operator:
            self.take(operator, WORDS)
        assert out.bodies == list(counts(WORDS))
        assert durable[-1] == {"words": len(WORDS)}

    def test_it_goes_on_after_its_positions(self, store):
        out = MemoryStream()
        with Operator("c", store, outputs={"counts": out}) as operator:
            self.take(operator, WORDS[:4])
        with Operator("c", store, outputs={"counts": out}) as operator:
            assert operator.positions == {"words": 4}
            self.take(operator, WORDS, operator.positions["words"])
        assert out.bodies == list(counts(WORDS))

    def test_a_position_is_taken_once(self, store):
        with Operator("c", store, outputs={"counts": MemoryStream()}) as operator:
            self.take(operator, WORDS)
            with pytest.raises(ValueError, match="taken already"), operator.event("words", 3):
                pass
            with operator.event("words", 11):
                pass

    def test_positions_may_be_tuples(self, store):
        with Operator("c", store) as operator, operator.event("redis", (17, 1)) as event:
            event.part(b"a")
        with Operator("c", store) as operator:
            assert operator.positions == {"redis": (17, 1)}

    def test_one_event_at_a_time(self, store):
        with Operator("c", store, outputs={"counts": MemoryStream()}) as operator, operator.event("words", 1):
            with pytest.raises(RuntimeError, match="not finished"), operator.event("words", 2):
                pass
            with pytest.raises(RuntimeError, match="flush inside an event"):
                operator.flush()

    def test_other_threads_wait_for_their_turn(self, store):
        def work(name):
            for position in range(1, 101):
                with operator.event(name, position) as event:
                    part = event.part(b"sum", lambda: [0])
                    part.state[0] += 1
                    event.emit("sums", b"%d" % part.state[0])

        out = MemoryStream()
        with Operator("c", store, outputs={"sums": out}) as operator:
            threads = [threading.Thread(target=work, args=(f"in{n}",)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert out.bodies == [b"%d" % n for n in range(1, 401)]

    def test_an_event_of_a_thread_is_not_that_of_another(self, store):
        with Operator("c", store) as operator:
            with operator.event("one", 1):
                pass
            mine = operator.event("one", 2)
            other = []
            thread = threading.Thread(target=lambda: other.append(operator.event("two", 1)))
            thread.start()
            thread.join()
            with mine as event:
                assert (event.source, event.position) == ("one", 2)
            with other[0] as event:
                assert (event.source, event.position) == ("two", 1)

    def test_parts_and_outputs_belong_to_events(self, store):
        with Operator("c", store, outputs={"counts": MemoryStream()}) as operator:
            with pytest.raises(RuntimeError, match="inside an event"):
                operator.part(b"a")
            with pytest.raises(RuntimeError, match="inside an event"):
                operator.emit("counts", b"")

    @pytest.mark.parametrize(
        ("mistake", "message"),
        [
            (lambda event: event.emit("nowhere", b""), "no output 'nowhere'; there are: counts"),
            (lambda event: event.emit("counts", "text"), "the body of an output is bytes, not str"),
            (lambda event: event.emit("counts", b"", key="text"), "the key of an output is bytes, not str"),
            (lambda event: event.part("text"), "the key of a part is bytes, not str"),
        ],
    )
    def test_mistakes_are_named(self, store, mistake, message):
        with pytest.raises((ValueError, TypeError), match=message):
            with Operator("c", store, outputs={"counts": MemoryStream()}) as operator:
                with operator.event("words", 1) as event:
                    mistake(event)

    def test_a_state_that_has_no_bytes_names_its_part(self, store):
        with pytest.raises(BadState, match=r"part b'a': .*object"):
            with Operator("c", store) as operator:
                with operator.event("words", 1) as event:
                    event.part(b"a").state["x"] = object()
                operator.flush()

    def test_it_must_be_entered(self, store):
        operator = Operator("c", store)
        with pytest.raises(Closed, match="enter it"), operator.event("words", 1):
            pass


class TestOutputs:
    def test_nothing_leaves_before_its_block_is_acknowledged(self, store):
        faulty, out = Faulty(store), MemoryStream()
        with Operator("c", faulty, outputs={"counts": out}, linger=0.001) as operator:
            with faulty.hold("write") as gate:
                with operator.event("words", 1, key=b"a") as event:
                    count(operator, event)
                gate.wait_for(1)
                time.sleep(0.05)
                assert out.bodies == []
            operator.flush()
            assert out.bodies == [b"a 1"]

    def test_at_once_they_do(self, store):
        faulty, out = Faulty(store), MemoryStream()
        settings = {"kind": "deterministic", "release": "at-once"}
        with Operator("c", faulty, outputs={"counts": out}, **settings) as operator, faulty.hold("write"):
            with operator.event("words", 1, key=b"a") as event:
                count(operator, event)
            until(lambda: out.bodies == [b"a 1"])

    def test_too_many_that_are_held_push_back(self, store):
        faulty, out = Faulty(store), MemoryStream()
        with Operator("c", faulty, outputs={"counts": out}, hold=Bounds(5)) as operator:
            taken = []

            def work():
                for position in range(1, 21):
                    with operator.event("words", position, key=b"a") as event:
                        count(operator, event)
                    taken.append(position)

            with faulty.hold("write"):
                thread = threading.Thread(target=work)
                thread.start()
                until(lambda: len(taken) == 5)
                time.sleep(0.05)
                assert len(taken) == 5
            thread.join()
            operator.flush()
        assert len(out.bodies) == 20

    def test_what_a_stream_does_not_retain_is_sent_again_until_readers_have_it(self, store):
        out = MemoryStream(retains=False)
        with Operator("c", store, outputs={"counts": out}) as operator:
            with operator.event("words", 1, key=b"a") as event:
                count(operator, event)
        lost = MemoryStream(retains=False)
        with Operator("c", store, outputs={"counts": lost}) as operator:
            until(lambda: lost.bodies == [b"a 1"])
            lost.acknowledgements["reader"] = 1
            until(lambda: operator._core.held == 0)

    def test_a_stream_of_somebody_else_is_refused(self, store):
        with pytest.raises(BadState, match="output counts has 2 elements"):
            with Operator("c", store, outputs={"counts": MemoryStream([b"x", b"y"])}):
                pass

    def test_an_output_that_is_not_given_any_more_is_named(self, store):
        with Operator("c", store, outputs={"counts": MemoryStream()}) as operator:
            with operator.event("words", 1, key=b"a") as event:
                count(operator, event)
        with pytest.raises(BadState, match="outputs to 'counts'"), Operator("c", store):
            pass

    def test_an_output_that_is_away_is_tried_again(self, store):
        class Away(MemoryStream):
            def send(self, elements):
                if self.sends < 3:
                    self.sends += 1
                    raise Unavailable("away")
                super().send(elements)

        out = Away()
        with Operator("c", store, outputs={"counts": out}) as operator:
            with operator.event("words", 1, key=b"a") as event:
                count(operator, event)
        assert out.bodies == [b"a 1"]


class TestOwning:
    def test_a_second_one_takes_over_and_the_first_one_stops(self, store):
        out = MemoryStream()
        first = Operator("c", store, outputs={"counts": out})
        with pytest.raises(Conflict), first:
            with first.event("words", 1, key=b"a") as event:
                count(first, event)
            first.flush()
            with Operator("c", store, outputs={"counts": out}) as second:
                with second.event("words", 2, key=b"a") as event:
                    count(second, event)
            with first.event("words", 2, key=b"b") as event:
                count(first, event)
            first.flush()
        assert out.bodies == [b"a 1", b"a 2"]

    def test_one_that_has_no_events_learns_that_it_was_replaced(self, store, monkeypatch):
        monkeypatch.setattr("safekeeper.operators.pump._CHECK", 0.01)
        words = MemoryStream()
        with pytest.raises(Conflict), Operator("c", store, inputs={"words": words.inlet}) as first:
            with Operator("c", store, inputs={"words": words.inlet}):
                next(first)

    def test_precise_or_not(self, store, tmp_path):
        def asked(url, **settings):
            with Operator("c", url, want="precise", **settings) as operator:
                return operator.guarantee

        log = f"log://{tmp_path}/store"
        assert asked(log) == "precise"
        assert asked(log, capture=Eventual(), kind="deterministic") == "precise"
        assert asked(log, release="at-once", kind="deterministic") == "precise"
        with pytest.raises(ValueError, match=r"c cannot recover precisely, but gap: .* such as log:"):
            asked(store)
        with pytest.raises(ValueError, match=r'divergent: .* take release="durable"'):
            asked(log, release="at-once")
        with pytest.raises(ValueError, match=r"divergent: .* take capture=Every"):
            asked(log, capture=Eventual())
        two = {name: MemoryStream().inlet for name in "ab"}
        with pytest.raises(ValueError, match="before the order of the inputs is stored"):
            asked(log, release="at-once", kind="deterministic", inputs=two)

    def test_a_stream_that_keeps_nothing_for_nobody_is_a_gap(self, tmp_path):
        out = MemoryStream(retains=False)
        settings = {"outputs": {"out": out}, "want": "precise"}
        with Operator("c", f"log://{tmp_path}/store", **settings) as operator:
            assert operator.guarantee == "precise"
        out.acknowledgements = {}
        with pytest.raises(ValueError, match="gap: output out does not keep what it has"):
            with Operator("c", f"log://{tmp_path}/store", **settings):
                pass

    def test_a_second_input_of_the_authors_own_may_be_one_too_many(self, tmp_path):
        settings = {"release": "at-once", "kind": "deterministic", "want": "precise"}
        with Operator("c", f"log://{tmp_path}/store", **settings) as operator:
            with operator.event("one", 1):
                pass
            with pytest.raises(ValueError, match="before the order of the inputs is stored"):
                operator.event("two", 1)

    def test_another_serializer_is_named(self, store):
        with Operator("c", store) as operator, operator.event("words", 1) as event:
            event.part(b"a")
        with pytest.raises(BadState, match="serializer='msgpack'"), Operator("c", store, serializer="json"):
            pass


class TestReplay:
    """With `Eventual` a recovery replays events."""

    def crash(self, operator):
        """Let it end as if it had been killed."""
        operator._pump.stop()
        operator._journal.release()
        operator._state = "closed"

    def test_events_are_replayed_without_emitting(self, store):
        out = MemoryStream()
        with Operator("c", store, outputs={"counts": out}, capture=Fuzzy(), kind="deterministic") as operator:
            for position, word in enumerate(WORDS + WORDS, 1):
                with operator.event("words", position, key=word) as event:
                    count(operator, event)
            until(lambda: out.last == 2 * len(WORDS))
            self.crash(operator)
        with Operator("c", store, outputs={"counts": out}, capture=Fuzzy(), kind="deterministic") as operator:
            begin = operator.positions["words"]
            assert begin < 2 * len(WORDS)
            assert operator.expects == "words"
            for position, word in list(enumerate(WORDS * 3, 1))[begin:]:
                with operator.event("words", position, key=word) as event:
                    count(operator, event)
            assert operator.expects is None
        assert out.bodies == list(counts(WORDS * 3))

    @pytest.mark.parametrize("change", ["another output", "no output", "another part"])
    def test_an_operator_that_is_not_deterministic_is_found_out(self, store, change):
        out = MemoryStream()
        with Operator("c", store, outputs={"counts": out}, capture=Fuzzy(), kind="deterministic") as operator:
            for position, word in enumerate(WORDS + WORDS, 1):
                with operator.event("words", position, key=word) as event:
                    count(operator, event)
            until(lambda: out.last == 2 * len(WORDS))
            self.crash(operator)
        with pytest.raises(Diverged, match=r"event \d+ of words.*part b'|event \d+ of words, which touches b'"):
            with Operator("c", store, outputs={"counts": out}, capture=Fuzzy(), kind="deterministic") as operator:
                for position, word in list(enumerate(WORDS + WORDS, 1))[operator.positions["words"] :]:
                    with operator.event("words", position, key=word) as event:
                        key = b"another" if change == "another part" else word
                        part = event.part(key)
                        part.state["n"] = part.state.get("n", 0) + 1
                        if change != "no output":
                            event.emit("counts", b"else", word)

    def test_two_inputs_are_replayed_in_the_recorded_order(self, store):
        """By iteration, where the operator takes them in that order by itself."""
        streams = {name: MemoryStream([b"%s%d" % (name.encode(), at) for at in range(40)]) for name in "ab"}
        out = MemoryStream()

        def operator(inputs="ab"):
            inlets = {name: streams[name].inlet for name in inputs}
            return Operator(
                "c", store, inputs=inlets, outputs={"out": out}, capture=Fuzzy(), kind="deterministic", hold=Bounds(7)
            )

        def take(operator, stop):
            for event in operator:
                part = operator.part(b"all", list)
                part.state.append(event.body)
                operator.emit("out", b" ".join(part.state[-5:]))
                if operator.events + 1 == stop:
                    break
            else:
                return
            if stop == 80:
                operator.stop()
                take(operator, 0)

        with operator() as first:
            take(first, 50)
            self.crash(first)
        seen = out.bodies
        with pytest.raises(BadState, match="give it among inputs="), operator("a") as second:
            take(second, 80)
        with operator() as third:
            assert third.expects is not None
            take(third, 80)
        assert out.bodies[: len(seen)] == seen
        assert len(out.bodies) == 80

    def test_one_part_an_event(self, store):
        with pytest.raises(RuntimeError, match=r"touches b'a' and b'b': .* capture=Every"):
            with Operator("c", store, capture=Eventual(), kind="deterministic") as operator:
                with operator.event("words", 1) as event:
                    event.part(b"a")
                    event.part(b"b")


class WhenTold:
    """Blocks with everything, as soon as it is told to."""

    fuzzy = told = False

    def due(self, view):
        return Choice.CHANGED if self.told else None


class Fuzzy:
    """Blocks after every event that leave out whatever they may."""

    fuzzy = True

    def due(self, view):
        return iter(())


def test_a_trigger_says_when_blocks_are_appended(store):
    with Operator("c", store, capture=Every(events=5)) as operator:
        for position in range(1, 13):
            with operator.event("words", position) as event:
                event.part(b"a")
            until(lambda: operator._journal.in_flight == 0)
        assert operator._journal.next_number == 3


def test_a_lone_event_does_not_linger_and_those_that_follow_it_share_a_block(store):
    out = MemoryStream()
    with Operator("c", store, outputs={"counts": out}, linger=3600) as operator:
        with operator.event("words", 1, key=b"a") as event:
            count(operator, event)
        until(lambda: out.bodies == [b"a 1"])
        for position in range(2, 12):
            with operator.event("words", position, key=b"a") as event:
                count(operator, event)
        assert operator._journal.next_number == 2
        operator.flush()
        assert operator._journal.next_number == 3
        assert len(out.bodies) == 11


def test_a_policy_that_waits_for_more_is_not_asked_all_the_time(store):
    """The pump asks a few times a second, whatever the linger is."""
    asked = []

    class Never:
        fuzzy = False

        def due(self, view):
            asked.append(view.waited)

    with Operator("c", store, capture=Never(), linger=0.0) as operator:
        with operator.event("words", 1) as event:
            event.part(b"a")
        until(lambda: asked[-1] > 0.3)
        assert len(asked) < 60


def test_a_policy_that_goes_by_time_is_not_asked_after_each_event(store):
    asked = []

    class Rarely(Eventual):
        def due(self, view):
            asked.append(view.events)
            return super().due(view)

    with Operator("c", store, capture=Rarely(), kind="deterministic", linger=3600) as operator:
        for position in range(1, 1001):
            with operator.event("words", position) as event:
                event.part(b"a")
        assert asked[0] == 1, "a lone event does not wait"
        assert len(asked) < 500


def test_a_block_that_became_due_in_an_event_comes_after_it(store):
    with Operator("c", store, linger=0.1) as operator:
        for position in (1, 2, 3):
            with operator.event("words", position) as event:
                event.part(b"a")
                if position == 3:  # the pump finds that the linger is over, and must not wait for eight events
                    until(lambda: operator._core.since_block > 0.1)
                    operator._wanted = False
                    until(lambda: operator._wanted)
                    before = operator._journal.next_number
        assert operator._journal.next_number == before + 1
