"""A stream that comes in batches: the format, who wins, who dies where, and what is left behind."""

import base64
import itertools
from contextlib import closing
from random import Random

import pytest

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Corruption, Gone, QueueFull, Unavailable
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.streams.batched import BatchOutlet, BatchPieceWriter
from safekeeper.streams.batches import (
    Roll,
    RollId,
    batch_of,
    column,
    decode_piece,
    decode_roll,
    encode_piece,
    in_order,
    piece_key,
)
from safekeeper.streams.registry import carrier_of
from safekeeper.streams.retained import Retention
from safekeeper.testing import Faulty

QUERY, OTHER = "0123456789abcdef" * 2, "f" * 32
ROLL_SAMPLE = (
    "U0tCMY7vPaRfaSeSlQvEEAAAAAAAAAAAAAAAAAAAAACSB8QQAQEBAQEBAQEBAQEBAQEBAYHZIDAxMjM0"
    "NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVmApTEAWECxAFiAQ=="
)
PIECE_SAMPLE = "U0tQMSYFC0qDaemBAgAAAAEAAAABAAAAawEAAAADAAAAYgAB"


@pytest.fixture
def url(tmp_path):
    return f"store:log://{tmp_path}/store?stream=counts"


@pytest.fixture
def store(tmp_path):
    with safekeeper.open(f"log://{tmp_path}/store") as store:
        yield store


def write(store, batch, *bodies, producer=QUERY, keys=None):
    return BatchPieceWriter(store, "counts", producer, batch).write(keys or [b""] * len(bodies), bodies)


def outlet(store, readers=(), **details):
    return BatchOutlet(store, "counts", readers, **details)


def drain(inlet):
    """All that is there now."""
    found = []
    while some := inlet.read(timeout=0):
        found += some
    return found


def bodies(url):
    with closing(open_inlet(url)) as inlet:
        return [element.body for element in drain(inlet)]


def ids(store):
    return sorted((group, key) for group in set(store.groups()) for key in set(store.keys(group)) if ".r" not in group)


def test_the_bytes_of_a_roll_stay_what_they_are():
    roll = Roll(11, bytes(16), RollId(7, b"\1" * 16), {QUERY: 2}, [(b"a", 2), (b"b", 1)])
    assert (roll.key, roll.last) == (b"batch_0000000000000000011", 13)
    assert base64.b64encode(roll.encode()).decode() == ROLL_SAMPLE
    assert decode_roll("here", roll.key, base64.b64decode(ROLL_SAMPLE)) == roll


def test_the_bytes_of_a_piece_stay_what_they_are():
    value = encode_piece(2, column([b"k", b""]), column([b"b", b"\0\1"]))
    assert base64.b64encode(value).decode() == PIECE_SAMPLE
    found = decode_piece("here", b"piece", base64.b64decode(PIECE_SAMPLE), 7)
    assert found.elements() == [StreamElement(7, b"b", b"k"), StreamElement(8, b"\0\1")]
    key = piece_key(QUERY, 7, "a" * 16, 3)
    assert key == f"piece_{QUERY}_0000000000000000007_aaaaaaaaaaaaaaaa_000003".encode()
    assert batch_of(key) == (QUERY, 7)
    assert batch_of(b"another") is None


@pytest.mark.parametrize("change", (lambda v: v[:-1], lambda v: b"X" + v[1:], lambda v: v[:-1] + b"\7", lambda v: b""))
def test_damage_is_named(change):
    roll = Roll(1, bytes(16), None, {QUERY: 0}, [(b"a", 2)])
    with pytest.raises(Corruption, match=r"words\.stream/batch_0000000000000000001 is damaged"):
        decode_roll("words.stream", roll.key, change(roll.encode()))
    with pytest.raises(Corruption, match=r"words\.pieces/piece is damaged"):
        decode_piece("words.pieces", b"piece", change(encode_piece(1, column([b""]), column([b"x"]))))


def test_a_roll_under_the_name_of_another_is_damage():
    roll = Roll(1, bytes(16), None, {QUERY: 0}, [(b"a", 2)])
    with pytest.raises(Corruption, match="another batch"):
        decode_roll("words.stream", b"batch_0000000000000000002", roll.encode())


def test_a_piece_with_too_few_elements_is_damage(store, url):
    outlet(store).commit(QUERY, 0, [(write(store, 0, b"a")[0], 2)])
    with pytest.raises(Corruption, match="it has 1 elements"):
        bodies(url)


def roll(first, id, before=None, count=10):
    before = None if before is None else RollId(before[0], bytes([before[1]]) * 16)
    return Roll(first, bytes([id]) * 16, before, {}, [(b"piece", count)])


@pytest.mark.parametrize(
    ("rolls", "counts"),
    [
        ([], []),
        ([roll(1, 1)], [1]),
        ([roll(1, 1), roll(11, 2, (1, 1)), roll(21, 3, (11, 2))], [1, 2, 3]),
        ([roll(1, 9), roll(11, 2, (1, 1))], [2]),
        ([roll(1, 1), roll(11, 9, (1, 1)), roll(21, 3, (11, 2))], [1, 3]),
        ([roll(1, 1), roll(21, 3, (11, 2))], [1, 3]),
        ([roll(1, 9, count=3), roll(4, 8, (1, 9)), roll(11, 2)], [2]),
        ([roll(1, 1), roll(5, 9, (1, 1)), roll(11, 2, (1, 1))], [1, 2]),
        ([roll(1, 9, count=40), roll(21, 3, (11, 2))], [3]),
        ([roll(1, 9, count=11), roll(21, 3, (11, 2))], [3]),
    ],
    ids=[
        "none",
        "one",
        "a chain",
        "another in its place",
        "another in the middle",
        "one missing",
        "all late",
        "between",
        "a long one that is late",
        "one that is late and too long by one",
    ],
)
def test_a_roll_counts_if_no_later_one_has_another_in_its_place(rolls, counts):
    for order in itertools.permutations(rolls):
        assert [found.id[0] for found in in_order(order)] == counts


def test_batches_are_numbered_and_read_like_any_stream(store, url):
    stream = outlet(store, ["dashboard"])
    one, two = write(store, 0, b"a", b"b", keys=[b"k", b""]), write(store, 0, b"c")
    assert stream.commit(QUERY, 0, [one, two])
    assert stream.commit(QUERY, 1, [write(store, 1, b"d")])
    with closing(open_inlet(url, reader="dashboard")) as inlet:
        assert drain(inlet) == [
            StreamElement(1, b"a", b"k"),
            StreamElement(2, b"b"),
            StreamElement(3, b"c"),
            StreamElement(4, b"d"),
        ]
        assert inlet.last() == 4
    (status,) = carrier_of(url).survey(url)
    assert (status.first, status.last, status.readers) == (1, 4, {"dashboard": 0})


def test_a_repeated_batch_does_nothing_whatever_its_pieces_are(store, url):
    assert outlet(store).commit(QUERY, 0, [write(store, 0, b"a", b"b")])
    assert not outlet(store).commit(QUERY, 0, [write(store, 0, b"b", b"a", b"c")])
    assert outlet(store).commit(QUERY, 1, [write(store, 1, b"d")])
    assert not outlet(store).commit(QUERY, 0, [write(store, 0, b"b", b"a", b"c")])
    assert bodies(url) == [b"a", b"b", b"d"]


def test_an_empty_batch_writes_nothing(store, url):
    assert not outlet(store).commit(QUERY, 0, [])
    assert outlet(store).commit(QUERY, 1, [write(store, 1), write(store, 1, b"a")])
    assert bodies(url) == [b"a"]


def test_the_batches_of_another_query_come_after(store, url):
    outlet(store).commit(QUERY, 5, [write(store, 5, b"a")])
    assert outlet(store).commit(OTHER, 0, [write(store, 0, b"b", producer=OTHER)])
    assert not outlet(store).commit(QUERY, 5, [write(store, 5, b"c")])
    assert outlet(store).commit(QUERY, 6, [write(store, 6, b"d")])
    assert bodies(url) == [b"a", b"b", b"d"]


def test_an_outlet_goes_on_after_batches_and_batches_after_an_outlet(store, url):
    for number in range(0, 6, 2):
        with closing(open_outlet(url)) as plain:
            plain.send([StreamElement(plain.last + 1, b"%d" % number)])
        assert outlet(store).commit(QUERY, number, [write(store, number, b"%d" % (number + 1))])
    assert bodies(url) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_nothing_is_read_from_pieces_that_nobody_committed(store, url):
    write(store, 0, b"a")
    assert bodies(url) == []


def test_pieces_of_the_dead_and_of_those_who_come_late_are_cleaned_and_no_others(store, url):
    write(store, 0, b"dead")
    kept = [write(store, 0, b"a"), write(store, 1, b"in progress"), write(store, 0, b"x", producer=OTHER)]
    stream = outlet(store)
    stream.commit(QUERY, 0, kept[:1])
    write(store, 0, b"late")
    stream.tidy()
    assert {key for group, key in ids(store) if group == "counts.pieces"} == {key for key, _ in kept}
    assert bodies(url) == [b"a"]


def test_what_all_readers_have_acknowledged_is_trimmed_but_the_last_batch(store, url):
    stream = outlet(store, ["one", "two"])
    for number in range(4):
        stream.commit(QUERY, number, [write(store, number, b"%d" % number, b"x")])
    with closing(open_inlet(url, reader="one")) as one, closing(open_inlet(url, reader="two")) as two:
        one.acknowledge(8)
        two.acknowledge(5)
        stream.tidy()
        (status,) = carrier_of(url).survey(url)
        assert status.first == 5
        assert [element.body for element in drain(two)] == [b"x", b"3", b"x"]
        two.acknowledge(8)
        stream.tidy()
    assert bodies(url) == [b"3", b"x"]
    assert len(ids(store)) == 2
    assert not stream.commit(QUERY, 0, [write(store, 0, b"again")])
    assert stream.commit(QUERY, 4, [write(store, 4, b"4")])
    assert bodies(url) == [b"3", b"x", b"4"]


def test_trimming_by_hand_keeps_batches_whole_and_readers_are_told(store, url):
    stream = outlet(store, ["one"])
    for number in range(3):
        stream.commit(QUERY, number, [write(store, number, b"a"), write(store, number, b"b")])
    carrier_of(url).trim(url, 3)
    assert carrier_of(url).survey(url).__next__().first == 3
    with closing(open_inlet(url, reader="one", after=0)) as inlet, pytest.raises(Gone, match="elements 1 to 2"):
        inlet.read(timeout=0)


def test_a_driver_that_was_overtaken_long_ago_changes_nothing(store, url, tmp_path):
    """It has listed the stream, and stops; others do its batch and more, all is read and trimmed; it goes on."""
    stream = outlet(store, ["one"])
    stream.commit(QUERY, 0, [write(store, 0, b"0")])

    class Slow(Faulty):
        def create(self, id, value, token):
            for number in (1, 2, 3):
                assert outlet(store, ["one"]).commit(QUERY, number, [write(store, number, b"%d" % number)])
            with closing(open_inlet(url, reader="one")) as inlet:
                inlet.acknowledge(3)
            outlet(store, ["one"]).tidy()
            return store.create(id, value, token)

    with Slow(safekeeper.open(f"log://{tmp_path}/store")) as slow:
        assert not BatchOutlet(slow, "counts", ["one"]).commit(QUERY, 1, [write(store, 1, b"late")])
    assert bodies(url) == [b"3"]
    outlet(store, ["one"]).tidy()
    assert len(ids(store)) == 2  # the late roll is gone


def test_a_driver_that_was_overtaken_by_another_query_loses_nothing(store, url, tmp_path):
    """Its roll comes late and does not count; the next one that it creates lists the same pieces."""
    outlet(store, ["one"]).commit(QUERY, 0, [write(store, 0, b"0")])

    class Slow(Faulty):
        others = (1, 2, 3)

        def create(self, id, value, token):
            for number in self.others:
                piece = write(store, number, b"%d" % number, producer=OTHER)
                assert outlet(store, ["one"]).commit(OTHER, number, [piece])
            with closing(open_inlet(url, reader="one")) as inlet:
                inlet.acknowledge(3)
            if self.others:
                outlet(store, ["one"]).tidy()
            self.others = ()
            return store.create(id, value, token)

    with Slow(safekeeper.open(f"log://{tmp_path}/store")) as slow:
        assert BatchOutlet(slow, "counts", ["one"]).commit(QUERY, 1, [write(store, 1, b"late")])
    outlet(store, ["one"]).tidy()
    assert bodies(url) == [b"3", b"late"]
    assert len(ids(store)) == 4


def test_a_late_roll_with_more_elements_than_came_meanwhile_hides_none_of_them(store, url, tmp_path):
    outlet(store, ["one"]).commit(QUERY, 0, [write(store, 0, b"0")])

    class Slow(Faulty):
        late = True

        def create(self, id, value, token):
            if self.late:
                self.late = False
                for number in (1, 2, 3):
                    piece = write(store, number, b"%d" % number, producer=OTHER)
                    assert outlet(store, ["one"]).commit(OTHER, number, [piece])
                with closing(open_inlet(url, reader="one")) as inlet:
                    inlet.acknowledge(3)
                outlet(store, ["one"]).tidy()
            return store.create(id, value, token)

    late = [b"a", b"b", b"c", b"d"]
    with Slow(safekeeper.open(f"log://{tmp_path}/store")) as slow:
        assert BatchOutlet(slow, "counts", ["one"]).commit(QUERY, 1, [write(store, 1, *late)])
    for _ in range(2):
        assert bodies(url) == [b"3", *late]
        with closing(open_inlet(url, reader="one")) as inlet:
            assert drain(inlet) == [StreamElement(4 + n, body) for n, body in enumerate([b"3", *late])]
        outlet(store, ["one"]).tidy()


def test_who_tidies_by_a_listing_with_a_hole_deletes_nothing_that_counts(store, url, tmp_path):
    """It is stopped in its listing; a batch is trimmed and two come meanwhile. It sees the second of them alone."""
    outlet(store, ["one"]).commit(QUERY, 0, [write(store, 0, b"0")])
    dead = write(store, 1, b"dead", producer=OTHER)

    class Stopped(Faulty):
        listings = 0

        def create(self, id, value, token):
            return store.create(id, value, token)

        def keys(self, group):
            if group != "counts.stream" or self.listings:
                return store.keys(group)
            self.listings += 1
            for number in (1, 2):
                piece = write(store, number, b"%d" % number, producer=OTHER)
                assert outlet(store, ["one"]).commit(OTHER, number, [piece])
            with closing(open_inlet(url, reader="one")) as inlet:
                inlet.acknowledge(1)
            carrier_of(url).trim(url, 1)
            return iter([key for key in store.keys(group) if not key.endswith(b"2")])

    with Stopped(safekeeper.open(f"log://{tmp_path}/store")) as stopped:
        BatchOutlet(stopped, "counts", ["one"]).tidy()
    assert bodies(url) == [b"1", b"2"]
    assert dead[0] not in set(store.keys("counts.pieces"))


def test_a_late_roll_is_not_taken_for_a_part_of_the_stream_by_a_listing_that_misses_others(store, url, tmp_path):
    outlet(store, ["one"]).commit(QUERY, 0, [write(store, 0, b"0")])

    class Overtaken(Faulty):
        step = "to create"

        def create(self, id, value, token):
            if self.step == "to create":
                for number in (1, 2, 3):
                    piece = write(store, number, b"%d" % number, producer=OTHER)
                    assert outlet(store, ["one"]).commit(OTHER, number, [piece])
                with closing(open_inlet(url, reader="one")) as inlet:
                    inlet.acknowledge(3)
                carrier_of(url).trim(url, 3)
                self.step = "to list"
            return store.create(id, value, token)

        def keys(self, group):
            if group != "counts.stream" or self.step != "to list":
                return store.keys(group)
            self.step = "overtaken"
            before = set(store.keys(group))
            assert outlet(store, ["one"]).commit(OTHER, 4, [write(store, 4, b"4", producer=OTHER)])
            batch = Batch()
            batch.delete(CheckpointId(group, b"batch_%019d" % 4))  # by one whose listing did not show the late roll
            store.write(batch)
            return iter(before & set(store.keys(group)))

    with Overtaken(safekeeper.open(f"log://{tmp_path}/store")) as late:
        assert outlet(late, ["one"]).commit(QUERY, 1, [write(store, 1, b"late")])
    with closing(open_inlet(url, reader="one", after=4)) as inlet:
        assert [element.body for element in drain(inlet)] == [b"4", b"late"]


class Losing(Faulty):
    """A store whose next create is done, and nobody hears of it."""

    lose = True

    def create(self, id, value, token):
        done = self.inner.create(id, value, token)
        if self.lose:
            self.lose = False
            raise Unavailable("no answer")
        return done


def test_a_commit_without_an_answer_is_done_once(store, url, tmp_path):
    with Losing(safekeeper.open(f"log://{tmp_path}/store")) as losing:
        stream = BatchOutlet(losing, "counts", ())
        with pytest.raises(Unavailable):
            stream.commit(QUERY, 0, [write(store, 0, b"a")])
        assert not stream.commit(QUERY, 0, [write(store, 0, b"b")])
    assert bodies(url) == [b"a"]


def test_a_reader_that_is_too_far_behind_stops_the_next_batch_or_is_dropped(store, url):
    full = outlet(store, ["one"], retention=Retention(2))
    full.commit(QUERY, 0, [write(store, 0, b"a", b"b")])
    with pytest.raises(QueueFull, match="its reader one"):
        full.commit(QUERY, 1, [write(store, 1, b"c")], patience=0)
    dropping = outlet(store, ["one"], retention=Retention(2, "drop-reader"))
    assert dropping.commit(QUERY, 1, [write(store, 1, b"c")])


def test_a_store_that_cannot_create_is_refused():
    class Plain:
        pass

    with pytest.raises(BadUrl, match="Plain cannot create an id once"):
        BatchOutlet(Plain(), "counts", ())


@pytest.mark.parametrize("seed", range(20))
def test_drivers_that_race_and_die_anywhere_make_the_stream_that_one_would_have_made(store, url, tmp_path, seed):
    """Two or three drivers do the same batches; each dies now and then at a write, before or after it."""
    chance = Random(seed)
    batches = 6

    class Dying(Faulty):
        def write(self, batch):
            self._perhaps_die()
            return self.inner.write(batch)

        def create(self, id, value, token):
            self._perhaps_die()
            done = self.inner.create(id, value, token)
            self._perhaps_die()
            return done

        def _perhaps_die(self):
            if chance.random() < 0.15:
                raise Unavailable("killed")

    read: list[bytes] = []

    def driver():
        """One driver: yields between steps, so that others come between."""
        with Dying(safekeeper.open(f"log://{tmp_path}/store")) as mine:
            number = max(done[0] - 1, 0)
            while number < batches:
                order = chance.sample(range(3), 3)
                pieces = [
                    BatchPieceWriter(mine, "counts", QUERY, number).write([b""], [b"%d %d" % (number, i)])
                    for i in order
                ]
                yield
                stream = BatchOutlet(mine, "counts", ["reader"])
                stream.commit(QUERY, number, pieces)
                done[0] = max(done[0], number + 1)
                yield
                stream.tidy()
                number += 1

    def take():
        with closing(open_inlet(url, reader="reader", after=len(read))) as inlet:
            some = inlet.read(timeout=0)
            assert [element.number for element in some] == [*range(len(read) + 1, len(read) + 1 + len(some))]
            read.extend(element.body for element in some)
            if some:
                inlet.acknowledge(len(read))

    done = [0]
    drivers = [driver() for _ in range(3)]
    while done[0] < batches or len(read) < 3 * batches:
        index = chance.randrange(len(drivers))
        try:
            next(drivers[index])
        except (StopIteration, Unavailable):
            drivers[index] = driver()
        if chance.random() < 0.4:
            take()
    for number in range(batches):
        assert sorted(read[3 * number : 3 * number + 3]) == [b"%d %d" % (number, index) for index in range(3)]
    assert len(read) == 3 * batches
    with BatchOutlet(safekeeper.open(f"log://{tmp_path}/store"), "counts", ["reader"]) as last:
        last.tidy()
    assert len([key for group, key in ids(store) if group == "counts.pieces"]) == 3
