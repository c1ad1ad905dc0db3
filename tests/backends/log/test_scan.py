"""The walk over many blocks at once finds what a walk from record to record finds, and ends where that ends."""

import random

import pytest
import xxhash

from safekeeper import Batch, CheckpointId, Columns
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.column_block import decode_columns
from safekeeper.backends.log.location import TOMBSTONE_BIT, location_of
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.scan import row_locations, scan
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.shared.records import BLOCK, COLUMNS, MOVED, RECORD, SEGMENT_HEAD, check_value, decode_block

from .killing import kill
from .power import QuickFiles


class Copy(LogSegment):
    """A segment whose bytes are in memory, where a test damages them."""

    def __init__(self, segment: LogSegment, data: bytes) -> None:
        self.number, self.nonce, self.data = segment.number, segment.nonce, data

    def read(self, size, offset):
        return self.data[offset : offset + size]


def step_by_step(segment, start=SEGMENT_HEAD.size, end=None, until=None):
    """Where the last good block ends, and the records up to there."""
    found, sequence = [], 0
    while (end is None or start < end) and (until is None or sequence < until):
        header = decode_block(segment.read(BLOCK.size, start), segment.nonce, start)
        block = segment.read(header.size, start) if header else b""
        records = header and len(block) == header.size and records_of(block, header, segment, start)
        if not isinstance(records, list):
            break
        found += records
        start += header.size
        sequence = max(sequence, header.sequence)
    return start, found


def records_of(block, header, segment, start):
    location = location_of(segment.number, start)
    if header.kind == COLUMNS:
        columns = decode_columns(memoryview(block), header)
        if columns is None:
            return None
        group, keys = columns
        return [
            (group, key, at, header.sequence) for key, at in zip(keys, row_locations(location, len(keys)), strict=True)
        ]
    found, at = [], BLOCK.size
    for _ in range(header.records):
        if len(block) < at + RECORD.size:
            return None
        check, value_check, sequence, epoch, value, key, group, flags = RECORD.unpack_from(block, at)
        key_at = at + RECORD.size + group
        value_at = key_at + key
        if value_at + value > len(block) or xxhash.xxh3_64_intdigest(block[at + 8 : value_at]) != check:
            return None
        if check_value(block[value_at : value_at + value]) != value_check:
            return None
        if header.kind != MOVED and (sequence, epoch) != (header.sequence, header.epoch):
            return None
        record_location = location + at // 8 | (TOMBSTONE_BIT if flags else 0)
        found.append((block[at + RECORD.size : key_at], block[key_at:value_at], record_location, sequence))
        at = value_at + value + 7 & ~7
    return found if at == len(block) else None


def found_by_scan(segment, **bounds):
    met = scan(segment, SEGMENT_HEAD.size, bounds.pop("end", None), **bounds)
    found = met.found
    return met.end, list(zip(found.groups, found.keys, found.locations, found.sequences, strict=True))


@pytest.fixture
def segment(tmp_path):
    """Blocks of all kinds and sizes, some with values that look like blocks, some larger than what is read at once."""
    rng = random.Random(7)
    store = LogBackend(tmp_path, LogOptions(segment=64 << 20), QuickFiles())

    def value(size):
        data = rng.randbytes(size)
        if size > 100 and rng.random() < 0.3:  # bytes of the log itself, as if it were a backup
            end = store._log._writing.appender._end
            start = rng.randrange(0, max(end - size, 1), 8)
            data = segment_of(store).read(size, start)
        return data

    for turn in range(400):
        operations = Batch()
        for _ in range(rng.choice((1, 1, 1, 2, 5, 40))):
            id = CheckpointId(rng.choice(("one", "another")), b"%d" % rng.randrange(50) * rng.randrange(3))
            if rng.random() < 0.2:
                operations.delete(id)
            else:
                operations.put(id, value(rng.choice((0, 1, 30, 200, 1500))))
        store.write(operations)
        if turn % 40 == 7:
            keys = [b"%d" % n for n in range(rng.choice((1, 30)))]
            store.write(Batch.of_columns(Columns.of("columns", keys, [value(300) for _ in keys])))
        if turn % 100 == 50:
            store.write(Batch({CheckpointId("large", b""): value(3 << 20)}))
    whole = segment_of(store)
    yield Copy(whole, whole.read(64 << 20, 0))
    kill(store)


def segment_of(store):
    segment = store._log._writing.appender._segment
    if segment.fd < 0:
        segment.open()
    return segment


def test_a_scan_finds_what_a_walk_from_record_to_record_finds(segment):
    end, found = step_by_step(segment)
    assert len(found) > 2000
    assert found_by_scan(segment) == (end, found)


def test_a_scan_ends_where_it_is_told_to(segment):
    headers = []
    at = SEGMENT_HEAD.size
    while header := decode_block(segment.read(BLOCK.size, at), segment.nonce, at):
        at += header.size
        headers.append((at, header.sequence))
    for end, sequence in headers[:: len(headers) // 20]:
        assert found_by_scan(segment, end=end) == step_by_step(segment, end=end)
        assert found_by_scan(segment, until=sequence) == step_by_step(segment, until=sequence)
        assert found_by_scan(segment, until=sequence)[0] == end


def test_a_scan_of_a_damaged_segment_ends_where_a_walk_from_record_to_record_ends(segment):
    rng = random.Random(11)
    whole, end = segment.data, step_by_step(segment)[0]
    small = min(end, 300_000)  # the damage is in the first part, so that a walk is short
    for _ in range(400):
        data = bytearray(whole[: small + rng.randrange(1000)])
        at = rng.randrange(SEGMENT_HEAD.size, len(data))
        length = rng.choice((1, 1, 1, 4, 8, 100))
        data[at : at + length] = rng.choice((rng.randbytes(length), bytes(length), b"\xff" * length))
        segment.data = bytes(data)
        assert found_by_scan(segment) == step_by_step(segment)
