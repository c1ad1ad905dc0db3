"""The bytes of `hdfs:`: what a scan believes of a segment that was cut or damaged, and what the index keeps of it."""

import itertools
from pathlib import Path

import pytest

from safekeeper.backends.hdfs.errors import Exists, Missing, explain
from safekeeper.backends.hdfs.index import HdfsIndex
from safekeeper.backends.hdfs.layout import (
    CREATED,
    CREATED_HEADS,
    HEADS,
    HdfsLargeValue,
    LocatedRecord,
    Piece,
    RecordLocation,
    Scanner,
    block_for,
    encode_footer,
    encode_pieces,
    open_record,
)
from safekeeper.backends.shared.records import RECORDS, check_value, encode_segment_head
from safekeeper.errors import Corruption, Unavailable

NONCE, FILE, WRITER = 77, 1000, 5


def piece(key, value):
    return Piece("group", key, value, check_value(value))


BLOCKS = (
    (1, RECORDS, [piece(b"a", b"first"), piece(b"b", b"")]),
    (2, RECORDS, [piece(b"a", b"second" * 20)]),
    (3, HEADS, [piece(b"c", HdfsLargeValue(10, 1, 5, WRITER, 1).encode())]),
    (4, RECORDS, [piece(b"b", None)]),
)


def segment():
    """The bytes of a sealed segment, where its blocks end, and what its blocks say."""
    data, ends, found = encode_segment_head(0, NONCE), [], []
    for sequence, kind, pieces in BLOCKS:
        parts, placed = encode_pieces(pieces, kind, NONCE, len(data), FILE, sequence, WRITER, sequence - 1)
        data += b"".join(parts)
        found += placed
        ends.append(len(data))
    newest = {each.key: each for each in found}
    return data + encode_footer(list(newest.values()), len(found), NONCE, len(data), 4, WRITER), ends, found


def reader(data):
    def read(offset, size):
        assert 0 <= offset <= offset + size <= len(data), "it reads what is not there"
        return data[offset : offset + size]

    return read


def test_blocks_are_read_as_they_were_written():
    data, _, found = segment()
    scanner = Scanner("place", FILE)
    assert list(scanner.scan(reader(data), len(data))) == found
    assert (scanner.sequence, scanner.records, scanner.sealed) == (4, len(found), True)
    for each in found:
        if not each.location.is_tombstone:
            record = data[each.location.offset : each.location.offset + each.location.size]
            group, key, _ = open_record(record, "place")
            assert (group, key) == (each.group, each.key)


def test_a_segment_of_version_1_is_still_written_and_read():
    stored = (Path(__file__).parent / "samples" / "version-1.segment").read_bytes()  # never made anew
    data, _, found = segment()
    assert data == stored
    assert list(Scanner("place", FILE).scan(reader(stored), len(stored))) == found


def test_the_contents_say_what_is_newest():
    data, _, found = segment()
    scanner = Scanner("place", FILE)
    contents = scanner.read_contents(reader(data), len(data))
    newest = {each.key: each.location for each in found}
    assert {each.key: each.location[:3] for each in contents} == {key: location[:3] for key, location in newest.items()}
    assert {each.key for each in contents if each.location.is_tombstone} == {b"b"}
    assert all(each.location == newest[each.key] for each in contents if not each.location.is_tombstone)
    assert scanner.records == len(found)


def test_a_segment_that_ends_anywhere_has_the_blocks_that_are_whole():
    data, ends, found = segment()
    counts = [len(pieces) for _, _, pieces in BLOCKS]
    for length in range(len(data)):
        scanner = Scanner("place", FILE)
        if scanner.read_contents(reader(data[:length]), length) is not None:
            raise AssertionError("contents that are not whole were believed")
        whole = sum(count for count, end in zip(counts, ends, strict=True) if end <= length)
        assert list(scanner.scan(reader(data[:length]), length)) == found[:whole], f"cut at {length}"
        assert list(scanner.scan(reader(data), len(data))) == found[whole:], f"cut at {length}, then whole"


def test_a_bit_that_flips_is_damage_or_changes_nothing():
    data, ends, found = segment()
    for offset in range(ends[-1]):
        damaged = data[:offset] + bytes([data[offset] ^ 4]) + data[offset + 1 :]
        assert scanned(damaged) in (found, "damage"), f"a flipped bit at {offset} changed what is there"


def scanned(data):
    try:
        return list(Scanner("place", FILE).scan(reader(data), len(data)))
    except Corruption as error:
        return "damage" if str(error).startswith("place: ") else str(error)


def location(sequence, writer=1, file=1, offset=0, is_tombstone=False):
    return RecordLocation(sequence, writer, file, offset, 8, RECORDS, is_tombstone)


@pytest.mark.parametrize(
    ("older", "newer"),
    (
        (location(1), location(2)),
        (location(1, writer=9), location(2, writer=1)),
        (location(2, writer=1), location(2, writer=9)),
        (location(2, file=1, offset=50), location(2, file=2)),
        (location(2, offset=8), location(2, offset=16)),
        (location(1), location(2, is_tombstone=True)),
        (location(1, is_tombstone=True), location(2)),
    ),
    ids=("sequence", "sequence before writer", "writer", "copy", "same block", "deleted", "put again"),
)
def test_the_newest_wins_in_whatever_order_they_are_met(older, newer):
    for order in ((older, newer), (newer, older), (newer, older, newer)):
        index = HdfsIndex()
        for each in order:
            index.add([LocatedRecord("g", b"k", each)])
        assert index.find("g", b"k") == (None if newer.is_tombstone else newer)
        assert index.keys("g") == ([] if newer.is_tombstone else [b"k"])
        assert index.groups() == ([] if newer.is_tombstone else ["g"])
        assert index.highest == newer.sequence


def test_files_that_are_gone_are_forgotten_with_what_was_only_in_them():
    index = HdfsIndex()
    index.add(
        [
            LocatedRecord("g", b"a", location(1, file=1)),
            LocatedRecord("g", b"b", location(1, file=2)),
            LocatedRecord("h", b"c", location(1, file=1)),
        ]
    )
    index.add([LocatedRecord("g", b"d", location(2, file=1, is_tombstone=True))])
    index.forget_files({1})
    assert (index.groups(), index.keys("g"), index.count()) == (["g"], [b"b"], 1)
    assert index.in_files({1, 2}) == [LocatedRecord("g", b"b", location(1, file=2))]


def test_a_file_ends_before_its_block_does():
    for size in (1 << 20, (1 << 20) + 512, 16 << 20):
        assert block_for(size) > size
        assert block_for(size) % 512 == 0


@pytest.mark.parametrize(
    ("exception", "said", "kind", "line"),
    (
        ("java.net.ConnectException", "Call From a to b failed", Unavailable, "nothing listens there"),
        ("java.lang.IllegalArgumentException", "java.net.UnknownHostException: x", Unavailable, "host is not known"),
        ("org.apache.hadoop.ipc.StandbyException", "Operation category READ", Unavailable, "is a standby NameNode"),
        ("java.io.FileNotFoundException", "File does not exist: /x", Missing, "there is no such file"),
        ("org.apache.hadoop.fs.FileAlreadyExistsException", "/x", Exists, "exists already"),
        ("java.io.EOFException", "End of File Exception between", Unavailable, "hung up"),
        ("java.io.IOException", "something\n\tat org.apache.hadoop...", Unavailable, "IOException: something"),
    ),
)
def test_a_java_exception_becomes_one_line(exception, said, kind, line):
    error = explain("hdfs://nn:8020/x", exception, said)
    assert type(error) is kind
    assert str(error).startswith("hdfs://nn:8020/x: ")
    assert line in str(error)
    assert "\n" not in str(error)


def test_what_counts_does_not_depend_on_the_order_in_which_segments_are_read():
    """Writes, deletes and creates of one id, each in a segment of its own, in all orders."""
    for kinds in itertools.product((RECORDS, CREATED, None), repeat=4):
        records = [
            LocatedRecord("g", b"k", RecordLocation(n + 1, 0, n + 1, 0, 8, kind or RECORDS, kind is None))
            for n, kind in enumerate(kinds)
        ]
        newest = {kind: max((n + 1 for n, one in enumerate(kinds) if one == kind), default=0) for kind in set(kinds)}
        written, created, deleted = newest.get(RECORDS, 0), newest.get(CREATED, 0), newest.get(None, 0)
        expected = written if written > deleted else created if created > deleted else None
        for order in itertools.permutations(records):
            index = HdfsIndex()
            for record in order:
                index.add([record])
            found = index.find("g", b"k")
            assert (found and found.sequence) == expected, (kinds, order)
            assert index.count() == len(index.keys("g")) == len(index.values("g")) == len(index.groups()) == bool(found)


def test_a_created_record_keeps_its_kind_where_it_is_moved():
    for kind, is_head in ((CREATED, False), (CREATED_HEADS, True)):
        location = RecordLocation(1, 2, 3, 4, 5, kind, False)
        assert (location.moved_kind, location.is_head, location.is_created) == (kind, is_head, True)
    assert not RecordLocation(1, 2, 3, 4, 5, RECORDS, False).is_created
    assert (CREATED, CREATED_HEADS) == (19, 20)
