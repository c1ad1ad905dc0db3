"""States that know their changes: windows, buffers and one's own, recorded in pieces."""

from random import Random

import pytest

from safekeeper import BadState, Corruption
from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.studies import delta_captures
from safekeeper.journal import Block, Follow, Image
from safekeeper.keeper.serializers import serializer_named
from safekeeper.operators import Buffer, Operator, Window, Windows
from safekeeper.operators.changes import piece, pieces

from . import test_core

MSGPACK = serializer_named("msgpack")

# A block with a whole record of windows and one of changes, by the first version that had them. It must open for ever:
# never change it.
SAMPLE = bytes.fromhex(
    "534b4a3129652b228617671c008ea26174920981a5776f72647309a67265706c6179920981a5776f72647309a56f726465729192a577"
    "6f72647302a46b65797392c402746fc4026265a56b696e6473c4026364a676616c75657392c411c10c00000093c09391009103910192"
    "9090c413c10e0000009302939103911f91019291029104a36f757480a76e756d6265727380a9636f6e6669726d656480a5666c6f6f72"
    "80a66f6c6465737407a46c69766502aa73657269616c697a6572a76d73677061636ba5726174657392cb0000000000000000cb000000"
    "0000000000"
)


def count(old, _):
    return (old or 0) + 1


def windows():
    return Windows(10, 2, count)


def buffer():
    return Buffer(8)


def change_windows(state, at, random):
    state.add(at - random.choice([0, 0, 0, 3, 20]), at)
    if random.random() < 0.2:
        state.close(at - random.choice([4, 8]))


def change_buffer(state, at, random):
    state.add(at, [at, random.randrange(100)])


def shown(state):
    return state.open() if isinstance(state, Windows) else list(state)


def copied(data):
    return MSGPACK.loads(MSGPACK.dumps(data))


@pytest.mark.parametrize(("new", "change"), [(windows, change_windows), (buffer, change_buffer)])
def test_whoever_pastes_all_changes_has_the_same(new, change):
    for seed in range(50):
        random = Random(seed)
        state, copy, at = new(), new(), 0
        copy.paste(copied(state.everything()))
        for _ in range(100):
            at += random.choice([0, 1, 1, 5])
            change(state, at, random)
            if random.random() < 0.3:
                copy.paste(copied(state.changes()))
                assert shown(copy) == shown(state), seed
            if random.random() < 0.05:
                copy = new()
                copy.paste(copied(state.everything()))
                assert shown(copy) == shown(state), seed
        copy.paste(copied(state.changes()))
        for end in range(at - 10, at + 10):  # and it goes on in the same way
            change(copy, at + 10, Random(end))
            change(state, at + 10, Random(end))
        assert shown(copy) == shown(state), seed


class TestWindows:
    def test_an_element_falls_into_all_windows_around_it(self):
        state = Windows(10, 5, lambda old, value: [*(old or []), value])
        assert state.add(7, "a") == 2
        assert state.add(12, "b") == 2
        assert [(window.begin, window.first, window.summary) for window in state.open()] == [
            *((0, 7, ["a"]), (5, 7, ["a", "b"]), (10, 12, ["b"])),
        ]

    def test_a_closed_window_stays_closed(self):
        state = windows()
        state.add(5)
        closed = state.close(10)
        assert [window.begin for window in closed] == [-4, -2, 0]
        assert state.add(5) == 2  # of five
        assert state.add(-3) == 0
        assert state.close(10) == []

    @pytest.mark.parametrize("new", [0, 1, 5])
    @pytest.mark.parametrize("updated", [0, 1, 5])
    def test_a_capture_has_exactly_the_bytes_of_its_new_and_its_updated_windows(self, new, updated):
        state, copy = Windows(1, 1, count), Windows(1, 1, count)
        for number in range(10):
            state.add(number + 0.5)
        copy.paste(copied(state.changes()))
        for number in (*range(updated), *range(10, 10 + new)):
            state.add(number + 0.5)
        assert state.dirty == (new, updated)
        assert delta_captures.counted_bytes(state) == 9 + 11 * new + 2 * updated
        captured = MSGPACK.dumps(state.changes())
        assert len(captured) == 9 + 11 * new + 2 * updated
        copy.paste(MSGPACK.loads(captured))
        assert copy.open() == state.open()

    def test_a_capture_has_new_windows_whole_and_of_others_the_summary(self):
        state = Windows(10, 10, count)
        state.add(3)
        state.add(13)
        assert state.dirty == (2, 0)
        assert state.changes() == [None, [[0, 1], [3, 13], [1, 1]], [[], []]]
        assert state.dirty == (0, 0)
        state.add(4)
        state.add(25)
        assert state.dirty == (1, 1)
        assert state.changes() == [None, [[2], [25], [1]], [[0], [2]]]
        state.close(20)
        assert state.changes() == [2, [[], [], []], [[], []]]

    @pytest.mark.parametrize(("size", "step"), [(10, 0), (10, 11), (0, 0), (5, -1)])
    def test_bad_sizes_are_refused(self, size, step):
        with pytest.raises(ValueError, match=f"step of {step} and a size of {size}"):
            Windows(size, step, count)


class TestBuffer:
    def test_it_has_what_came_within_the_window(self):
        state = Buffer(10)
        for at in range(100):
            state.add(at, at)
        assert list(state) == list(range(89, 100))
        assert len(state) == 11
        assert state.between(95, 97) == [95, 96, 97]
        assert state.between(0, 89) == [89]

    def test_a_capture_never_has_more_than_there_is(self):
        state = Buffer(10)
        for at in range(100):
            state.add(at, at)
        assert state.dirty == 11
        assert state.changes() == [89, list(range(89, 100)), list(range(89, 100))]
        state.add(100, "new")
        assert state.changes() == [90, [100], ["new"]]

    def test_what_comes_too_late_is_refused(self):
        state = Buffer(10)
        state.add(5, "a")
        with pytest.raises(ValueError, match="4 is before 5"):
            state.add(4, "b")


class TestPieces:
    def test_the_sample_of_the_first_version_opens(self):
        block = Block.decode(SAMPLE)
        assert dict(zip(block.keys, map(chr, block.kinds), strict=True)) == {b"to": "c", b"be": "d"}
        whole, changes = (MSGPACK.loads(data) for value in block.values for data in pieces(value))
        state = Windows(10, 10, count)
        state.paste(whole)
        assert state.open() == [Window(0, 3, 1)]
        state.add(25)
        state.paste(changes)
        assert state.open() == [Window(20, 25, 4), Window(30, 31, 1)]

    def test_their_bytes_stay_what_they_are(self):
        assert piece(b"abc") == bytes.fromhex("c103000000616263")
        assert list(pieces(bytes.fromhex("c103000000616263c100000000"))) == [b"abc", b""]

    @pytest.mark.parametrize("value", [b"\x80", b"\xc1\x03\0\0\0ab", piece(b"abc") + b"x", b"\xc1\0"])
    def test_other_bytes_are_named(self, value):
        with pytest.raises(Corruption, match="not pieces"):
            list(pieces(value))


class Values(list):
    """A state of somebody's own: values that were appended. It is long, so that changes are shorter."""

    def __init__(self):
        self.known = 0

    def changes(self):
        new, self.known = list(self[self.known :]), len(self)
        return new

    def everything(self):
        self.known = len(self)
        return {"padding": bytes(200), "values": list(self)}

    def paste(self, data):
        self += data if isinstance(data, list) else data["values"]
        self.known = len(self)


@pytest.mark.crash
def test_an_operator_that_is_killed_recovers_from_changes(monkeypatch):
    """As `test_core`, with parts that know their changes."""
    kinds, encode = bytearray(), Block.encode

    def noted(block):
        kinds.extend(block.kinds)
        return encode(block)

    monkeypatch.setattr(test_core, "NEW", Values)
    monkeypatch.setattr(Block, "encode", noted)
    for seed in test_core.SEEDS:
        run = test_core.Run(seed)
        assert run.play() == run.reference(), f"seed {seed}"
    assert kinds.count(b"d") > len(test_core.SEEDS)


def test_without_the_record_below_it_would_be_found_out(monkeypatch):
    """A mistake: whoever has a delta forgets what it stands on."""
    monkeypatch.setattr(test_core, "NEW", Values)
    monkeypatch.setattr(Image, "_lengthened", lambda *args: {})
    assert test_core.wrong(range(40)) > 10


class TestOperator:
    @pytest.fixture
    def store(self):
        with MemoryBackend() as store:
            yield store

    def take(self, operator, numbers):
        for number in numbers:
            with operator.event("numbers", number) as event:
                event.part(b"all", windows).state.add(number)
            operator.flush()

    def last_block(self, store):
        follow = Follow(store, "o")
        follow.poll()
        return follow.image.last

    def test_blocks_have_what_has_changed(self, store):
        with Operator("o", store) as operator:
            self.take(operator, range(1, 200))
            block = self.last_block(store)
            assert block.kinds == b"d"
            assert len(block.values[0]) < 40
            expected = shown(operator.look(b"all", windows))
        with Operator("o", store) as operator:
            assert shown(operator.look(b"all", windows)) == expected
            self.take(operator, [200])
            assert shown(operator.look(b"all")) != expected
            assert self.last_block(store).kinds == b"d"  # it goes on behind what was there

    def test_the_changes_never_take_more_than_the_whole(self, store):
        with Operator("o", store) as operator:
            self.take(operator, range(1, 100))
        follow = Follow(store, "o")
        follow.poll()
        (value,) = follow.image.parts.values()
        first, *rest = pieces(value)
        assert rest
        assert sum(map(len, rest)) < len(first)
        assert follow.image.extent.records < 100

    def test_another_state_in_its_place_is_recorded_whole(self, store):
        with Operator("o", store) as operator:
            self.take(operator, range(1, 20))
            with operator.event("numbers", 20) as event:
                part = event.part(b"all", windows)
                part.state = windows()
                part.state.add(20)
            operator.flush()
            assert self.last_block(store).kinds == b"c"
            expected = shown(operator.look(b"all"))
        with Operator("o", store) as operator:
            assert shown(operator.look(b"all", windows)) == expected

    def test_what_an_event_has_changed_is_put_back(self, store):
        with Operator("o", store, undo=True, on_error=lambda event, error: None) as operator:
            self.take(operator, range(1, 20))
            expected = shown(operator.look(b"all"))
            with operator.event("numbers", 20) as event:
                event.part(b"all", windows).state.add(20)
                raise ZeroDivisionError
            assert shown(operator.look(b"all")) == expected
        with Operator("o", store) as operator:
            assert shown(operator.look(b"all", windows)) == expected

    def test_mistakes_are_named(self, store):
        with Operator("o", store) as operator:
            self.take(operator, range(1, 5))
        with (
            pytest.raises(BadState, match=r"part b'all'.*give the new= that made it"),
            Operator("o", store) as operator,
        ):
            operator.look(b"all")
        with (
            pytest.raises(BadState, match="part b'all': new= gave a state"),
            Operator("o", store) as operator,
            operator.event("numbers", 5) as event,
        ):
            event.part(b"all", windows).state = {}
        with Operator("p", store) as operator, operator.event("numbers", 1) as event:
            event.part(b"all").state["n"] = 1
        with pytest.raises(BadState, match="not pieces"), Operator("p", store) as operator:
            operator.look(b"all", windows)
