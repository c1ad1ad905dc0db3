"""Values of any size: what comes back, what is left behind, and what a crash at any moment leaves."""

import io
import os
from contextlib import contextmanager
from random import Random

import pytest

from safekeeper import BadId, Batch, CheckpointId, Corruption, Unavailable, large
from safekeeper.backend import MAX_VALUE_BYTES
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty

from ..unruly import Turns, UnrulyStore
from .model import Rules, Torn, explore

ID = CheckpointId("models", b"weights")
LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


@pytest.fixture
def store():
    with MemoryBackend() as store:
        yield store


def write(store, data, id=ID):
    """*data* in parts of 10 bytes."""
    return large.write(store, id, io.BytesIO(data), part_bytes=10)


def parts(store):
    return sorted(store.keys("models.parts"))


class TestEveryOrder:
    def test_a_head_always_has_its_parts(self):
        assert explore(Rules((2, 2))) > 10_000

    def test_a_head_always_has_its_parts_with_three_writers(self):
        assert explore(Rules((1, 1, 1), failures=1)) > 10_000

    @pytest.mark.parametrize(
        "rules",
        [Rules(head_last=False), Rules(new_name=False), Rules(delete_after=False)],
        ids=["head first", "a head is written again", "old parts go first"],
    )
    def test_a_protocol_with_a_mistake_tears_a_value(self, rules):
        with pytest.raises(Torn):
            explore(rules)


class TestTheCodeInManyOrders:
    @pytest.mark.parametrize("seed", range(1_000 if LONG else 100))
    def test_a_reader_always_finds_a_whole_value(self, seed):
        random = Random(seed)
        turns = Turns(random)
        store = UnrulyStore(random, turns)
        values = [bytes([65 + n]) * random.choice((5, 10, 25)) for n in range(6)]

        def write_some(mine):
            for value in mine:
                write(store, value)

        def read_some():
            for _ in range(3):
                assert large.read(store, ID) in (None, *values)

        turns.run(lambda: write_some(values[:3]), lambda: write_some(values[3:]), read_some)
        turns.run(lambda: self.check_the_end(store, values))

    def check_the_end(self, store, values):
        found = large.read(store, ID)
        assert found in (values[2], values[5])
        large.sweep(store, "models")
        assert large.read(store, ID) == found
        head = 1 if len(found) > 10 else 0
        assert len(parts(store)) == head + (-(-len(found) // 10) if head else 0)


class TestWhatComesBack:
    @pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 21, 1005])
    def test_every_size(self, store, size):
        data = Random(size).randbytes(size)
        write(store, data)
        assert large.read(store, ID) == data
        with large.open_value(store, ID) as file:
            assert file.read() == data

    def test_more_than_a_value_may_have(self, store):
        data = bytes(1 << 20) * 65 + b"end"
        large.write(store, ID, data)
        assert large.read(store, ID) == data
        assert len(parts(store)) == 6

    def test_what_fits_is_stored_as_it_is(self, store):
        large.write(store, ID, b"small")
        assert store.read([ID]) == [b"small"]
        assert parts(store) == []

    def test_bytes_that_look_like_a_head_come_back(self, store):
        large.write(store, ID, b"a" * 65)
        write(store, bytes(35))
        (head,) = store.read([ID])
        for data in (head, head[:4], b"SKV1"):
            large.write(store, ID, data)
            assert large.read(store, ID) == data

    def test_a_file_that_gives_little_at_a_time(self, store):
        class Trickling(io.BytesIO):
            def read(self, size=-1):
                return super().read(min(size, 3))

        large.write(store, ID, Trickling(b"x" * 47), part_bytes=10)
        assert large.read(store, ID) == b"x" * 47

    def test_reading_in_the_middle(self, store):
        data = Random(1).randbytes(95)
        write(store, data)
        with large.open_value(store, ID) as file:
            file.seek(33)
            assert file.read(14) == data[33:47]
            file.seek(-5, io.SEEK_END)
            assert file.read() == data[-5:]
            assert file.seek(200) == 200
            assert file.read() == b""

    def test_absent_is_absent(self, store):
        assert large.read(store, ID) is None
        assert large.open_value(store, ID) is None

    def test_a_group_has_room_for_the_name_of_the_parts(self, store):
        with pytest.raises(BadId):
            write(store, bytes(100), CheckpointId("g" * 250, b""))


class TestWhatIsLeft:
    def test_the_parts_of_the_value_before_go(self, store):
        write(store, bytes(100))
        write(store, b"1" * 25)
        assert len(parts(store)) == 4
        write(store, b"small")
        assert parts(store) == []

    def test_the_parts_of_a_deleted_value_go(self, store):
        write(store, bytes(100))
        large.delete(store, ID)
        assert (large.read(store, ID), parts(store)) == (None, [])

    @pytest.mark.parametrize("skip", range(6))
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_an_attempt_that_failed_is_made_again_and_leaves_nothing(self, store, skip, when):
        write(store, b"old" * 10)
        faulty = Faulty(store)
        attempt = large.LargeWrite(faulty, ID, part_bytes=10)
        faulty.fail("write", skip=skip, when=when)
        try:
            attempt.write(io.BytesIO(b"new" * 10))
        except Unavailable:
            assert large.read(store, ID) in (b"old" * 10, b"new" * 10)
            attempt.write(io.BytesIO(b"new" * 10))
        assert large.read(store, ID) == b"new" * 10
        large.sweep(store, "models")
        assert len(parts(store)) == 4

    def test_a_failed_attempt_is_cleaned_up_without_a_sweep(self, store):
        faulty = Faulty(store)
        attempt = large.LargeWrite(faulty, ID, part_bytes=10)
        for skip in range(5):
            faulty.fail("write", skip=skip, when="after")
            with pytest.raises(Unavailable):
                attempt.write(io.BytesIO(b"new" * 10))
        attempt.write(io.BytesIO(b"new" * 10))
        assert len(parts(store)) == 4

    def test_sweeping_removes_what_a_dead_writer_left_and_nothing_else(self, store):
        write(store, b"kept" * 10)
        faulty = Faulty(store)
        faulty.fail("write", skip=3)
        with pytest.raises(Unavailable):
            write(faulty, b"lost" * 10)
        assert large.sweep(store, "models") == 1
        assert large.sweep(store, "models") == 0
        assert large.read(store, ID) == b"kept" * 10


class TestDamage:
    def test_a_part_that_is_gone(self, store):
        write(store, bytes(100))
        batch = Batch()
        batch.delete(CheckpointId("models.parts", parts(store)[-1]))
        store.write(batch)
        with pytest.raises(Corruption, match="models/weights: part 9 of its value is gone"):
            large.read(store, ID)
        with large.open_value(store, ID) as file, pytest.raises(Corruption):
            file.read()

    def test_a_part_that_is_another(self, store):
        write(store, bytes(100))
        store.write(Batch({CheckpointId("models.parts", parts(store)[-1]): b"1" * 10}))
        with pytest.raises(Corruption, match="do not fit"):
            large.read(store, ID)

    def test_a_head_that_is_damaged(self, store):
        write(store, bytes(100))
        (head,) = store.read([ID])
        for damaged in (head[:-1], head[:20] + b"?" + head[21:], head + b"?"):
            store.write(Batch({ID: damaged}))
            with pytest.raises(Corruption, match="head"):
                large.read(store, ID)

    def test_a_file_whose_value_is_replaced_says_so(self, store):
        write(store, bytes(100))
        with large.open_value(store, ID) as file:
            write(store, b"1" * 100)
            with pytest.raises(Unavailable, match="read it again"):
                file.read()

    def test_the_head_is_as_it_is_written_down(self, store):
        head = large.LargeHead(bytes(range(16)), 100, 10, 0x0102030405060708)
        assert head.encode().hex() == HEAD
        assert large.LargeHead.decode(ID, bytes.fromhex(HEAD)) == head


HEAD = "534b5631d57e88e20197b664000102030405060708090a0b0c0d0e0f64000000000000000a0000000807060504030201"


class Counting(MemoryBackend):
    """Gains by several writes under way, and counts how many ids each read has."""

    concurrent_writes = 8

    def __init__(self):
        super().__init__()
        self.reads = []

    def read(self, ids):
        self.reads.append(len(ids))
        return super().read(ids)


def test_a_file_is_read_as_parallel_as_it_was_written_while_it_is_read_in_order():
    data, part = os.urandom(10_000), 1000
    with Counting() as store:
        large.write(store, ID, io.BytesIO(data), part_bytes=part)
        store.reads.clear()
        with large.open_value(store, ID) as file:
            assert file.read() == data
            assert store.reads == [1, 1, 4, 4, 1]  # the head, the first part, and the rest
            store.reads.clear()
            for at in (7_500, 2_500, 5_500):  # whoever jumps gets what he asks for and no more
                file.seek(at)
                assert file.read(10) == data[at : at + 10]
            assert store.reads == [1, 1, 1]


def test_what_is_in_memory_is_announced_whole_before_its_parts_are_written():
    told = []

    class Announced(Counting):
        @contextmanager
        def announced(self, group, nbytes):
            told.append((group, nbytes))
            yield
            told.append(len(list(self.keys(group))))

    with Announced() as store:
        large.write(store, ID, bytes(MAX_VALUE_BYTES + 1))
        assert told == [(f"{ID.group}.parts", MAX_VALUE_BYTES + 1), 5 + 1]  # and a note whose they are
