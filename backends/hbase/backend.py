"""`HBaseBackend`: the contract on top of the layout, the table and the clock."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Survives, check_creation
from safekeeper.backends.hbase.layout import (
    CHECKPOINT,
    CHUNK,
    CHUNK_BYTES,
    CREATED,
    FIRST_GROUP,
    GATE,
    HEAD,
    KEY,
    LONG_KEY_BYTES,
    VALUES,
    HBaseGroup,
    HBaseLargeValue,
    decode,
    encode,
    group_of,
    head_in,
    locate,
    split,
    token_of,
)
from safekeeper.backends.hbase.options import HBaseOptions, TableAddress, parse
from safekeeper.backends.hbase.sweeper import Sweeper
from safekeeper.backends.hbase.table import RowChange, Table, delete, put
from safekeeper.backends.shared.checksums import check, damaged
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.backends.shared.pages import pages
from safekeeper.backends.shared.server_clock import Clock
from safekeeper.errors import BadUrl, Corruption, Unavailable
from safekeeper.url import Url

_WINDOW_BYTES = 1536 * 1024
"""How much one call changes at most: below the 2 MB of a Thrift frame, and more than any one id has."""
_WINDOW_ROWS = 1000
_ROW_OVERHEAD = 64
_KEYS_TOGETHER = 1000
_GROUP_ROWS_TOGETHER = 100
_CHUNKS_TOGETHER = 8
_REMEMBERED = 10_000
"""How many large values a handle knows of, to remove their chunks when it replaces them."""

_ATTEMPTS = 100
_PAUSES = random.Random()  # noqa: S311 - how long to wait is no secret


@dataclass(frozen=True, slots=True)
class _LargeRow:
    """A large value that was seen or written in a row."""

    group: HBaseGroup
    head: HBaseLargeValue
    timestamp: int


class HBaseBackend(Backend):
    """Checkpoints in HBase: one row per id, and a clock by which whoever writes later wins."""

    scope = Scope.NETWORK
    url_options = (HBaseOptions,)
    survives = Survives.PROCESS
    """Every write goes into the write-ahead log before it is answered. Whether that is synced to disks, and on how many
    hosts it lies, cannot be asked through Thrift: declare it with `?assert=`."""

    def __init__(self, address: TableAddress, options: HBaseOptions) -> None:
        super().__init__()
        self._options = options
        self._table = Table(address, options)
        self._clock = Clock(self._table.read_clock)
        self._sweeper = Sweeper(self._table, self._clock, options.orphans_after)
        self._large: dict[bytes, _LargeRow] = {}
        try:
            self._table.check()
        except BaseException:
            self._table.close()
            raise

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `hbase://`; see the package."""
        options = url.options(HBaseOptions)
        try:
            return cls(parse(url), options)
        except Misconfigured as error:
            raise BadUrl(str(error)) from error

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        if batch.columns is None:  # columns delete nothing
            self._look_for_chunks([id for id, value in batch.items() if value is None])
        window: dict[bytes, RowChange] = {}
        nbytes = 0
        for id, value in batch.items():
            group = locate(id.group)
            row = group.row(id.key)
            if value is not None and len(value) > CHUNK_BYTES:
                self._write_large(group, row, id.key, value)
                continue
            size = len(value or b"") + len(id.key) + len(row) + _ROW_OVERHEAD
            if window and (nbytes + size > _WINDOW_BYTES or len(window) == _WINDOW_ROWS):
                self._change(window)
                window, nbytes = {}, 0
            window[row] = (
                delete(row) if value is None else put(row, _cells(id.key, CHECKPOINT, encode(group, id.key, value)))
            )
            nbytes += size
        if window:
            self._change(window)
        return Receipt(self.survives)

    def _change(self, rows: Mapping[bytes, RowChange]) -> int:
        """Change the rows of ids, then remove the chunks of the values that this replaced; the time of the change."""
        replaced = [old for old in (self._large.pop(row, None) for row in rows) if old] if self._large else []
        timestamp = self._clock.next(after=max((old.timestamp for old in replaced), default=0))
        self._table.write(list(rows.values()), timestamp)
        self._clock.settle(timestamp)
        for old in replaced:
            with suppress(Unavailable):  # the change is made; what is left behind is swept later
                self._table.write([delete(chunk) for chunk in old.head.rows(old.group)], timestamp)
        return timestamp

    def _write_large(self, group: HBaseGroup, row: bytes, key: bytes, value: bytes) -> None:
        """Write a value in chunks, then its head: until that is there, nobody sees the chunks."""
        if row not in self._large:
            self._look_at([row], group)
        head = self._write_chunks(group, row, key, value)
        timestamp = self._change({row: put(row, _cells(key, CHECKPOINT, head.encode()))})
        self._remember(row, _LargeRow(group, head, timestamp))
        with suppress(Unavailable):
            self._sweeper.sweep_some(group)

    def _write_chunks(
        self, group: HBaseGroup, row: bytes, key: bytes, value: bytes, token: bytes = b""
    ) -> HBaseLargeValue:
        """Write the chunks of a value; the head that is to follow."""
        started = time.monotonic()
        head, chunks = split(group, key, value, token)
        for chunk_row, chunk in zip(head.rows(group), chunks, strict=True):
            self._table.write([put(chunk_row, {CHUNK: chunk, HEAD: row})], self._clock.next())
        if time.monotonic() - started > self._options.orphans_after / 2:
            raise Unavailable(
                f"{CheckpointId(group.name, key)}: writing its chunks took too long: raise orphans-after="
            )
        return head

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """Whoever is the last to set the gate of a row may put what it creates there, if the row has no value then.

        The server can compare one column and put one column in one step, and gives the time itself. So the column that
        is compared is the gate. Once it is set, nobody who set it before can create any more, and whoever did shows
        when the row is read. A delete takes the gate away. Only writes may come in between: theirs is another column,
        which counts before this one. The cell gets the gate's time, which is one of the times that writes carry.

        So a value that was written is never hidden by one that was created. The price: a write of an absent id that
        raised `Unavailable`, and that no later write or delete has overtaken, may still come after a create.
        """
        self.check_open()
        check_creation(id, value, token)
        group = locate(id.group)
        row = group.row(id.key)
        for attempt in range(_ATTEMPTS):
            mine = self._is_mine(group, row, id.key, token)
            if mine is not None:
                return mine
            head: HBaseLargeValue | None = None
            if len(value) > CHUNK_BYTES:
                head = self._write_chunks(group, row, id.key, value, token)
            cell = head.encode() if head else encode(group, id.key, value, token)
            timestamp = self._put_through_gate(row, id.key, cell)
            if timestamp and head:
                self._remember(row, _LargeRow(group, head, timestamp))
            if timestamp:
                return True
            if head:
                with suppress(Unavailable):  # else they are swept later
                    self._table.write([delete(chunk) for chunk in head.rows(group)], self._clock.next())
            time.sleep(_PAUSES.uniform(0, min(0.001 * 2**attempt, 0.1)))  # not all again at the same moment
        raise Unavailable(f"{id}: too many others try to create it at the same time: try again")

    def _put_through_gate(self, row: bytes, key: bytes, cell: bytes) -> int:
        """Create the value of *row*, if it has none and nobody else sets the gate; its timestamp, or 0."""
        gate = secrets.token_bytes(16)
        timestamp = self._clock.next()
        self._table.write([put(row, _cells(key, GATE, gate))], timestamp)
        self._clock.settle(timestamp)  # so that a write that begins after this has a later time
        if self._table.read([row], *VALUES) or not self._table.check_and_put(row, (GATE, gate), (CREATED, cell)):
            return 0
        return timestamp

    def _is_mine(self, group: HBaseGroup, row: bytes, key: bytes, token: bytes) -> bool | None:
        """Whether the value in *row* was created with *token*; None if there is no value."""
        cell = self._table.read([row], *VALUES).get(row)
        return None if cell is None else token_of(group, key, cell.value) == token

    def _look_for_chunks(self, deleted: Sequence[CheckpointId]) -> None:
        """Find out which of the ids that are about to be deleted have chunks, so that those go with them.

        The chunks of a value that this handle replaces without knowing of them are left to the sweeper. It comes when
        the group is written to again, and after the last delete nobody may do that.
        """
        unknown: dict[HBaseGroup, list[bytes]] = {}
        for id in deleted:
            group = locate(id.group)
            row = group.row(id.key)
            if row not in self._large:
                unknown.setdefault(group, []).append(row)
        for group, rows in unknown.items():
            if self._table.scan(group.chunks, group.end, 1):
                self._look_at(rows, group)
                with suppress(Unavailable):
                    self._sweeper.sweep_some(group)

    def _look_at(self, rows: Sequence[bytes], group: HBaseGroup) -> None:
        """Remember which of *rows* have the head of a large value; whether anything in them is damaged is no matter."""
        for row, cell in self._table.read(rows, *VALUES).items():
            if head := head_in(cell.value):
                self._remember(row, _LargeRow(group, head, cell.timestamp))

    def _remember(self, row: bytes, large: _LargeRow) -> None:
        while len(self._large) >= _REMEMBERED:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread may do the same
                self._large.pop(next(iter(self._large)))
        self._large[row] = large

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        values: dict[CheckpointId, bytes | None] = {}
        larges: dict[CheckpointId, _LargeRow] = {}
        missing = list(dict.fromkeys(ids))
        while missing:
            before, larges = larges, self._read_rows(missing, values)
            for id, large in larges.items():
                if id in before and before[id].head == large.head:
                    raise damaged(large.group, id.key, "parts of the value are gone")
                value = self._join(id.key, large)
                if value is not None:
                    values[id] = value
            missing = [id for id in larges if id not in values]  # replaced between two reads
        return [values[id] for id in ids]

    def _read_rows(
        self, ids: Sequence[CheckpointId], values: dict[CheckpointId, bytes | None]
    ) -> dict[CheckpointId, _LargeRow]:
        """Put the values of *ids* into *values*, but for the large ones: those are returned, not read yet."""
        rows = {id: locate(id.group).row(id.key) for id in ids}
        cells = self._table.read(list(rows.values()), *VALUES)
        larges = {}
        for id, row in rows.items():
            group, cell = locate(id.group), cells.get(row)
            if cell is None:
                values[id] = None
                continue
            value = decode(group, id.key, cell.value)
            if isinstance(value, bytes):
                values[id] = value
            else:
                larges[id] = _LargeRow(group, value, cell.timestamp)
                self._remember(row, larges[id])
        return larges

    def _join(self, key: bytes, large: _LargeRow) -> bytes | None:
        """The value of a head; None if its chunks are not all there any more."""
        rows = large.head.rows(large.group)
        chunks = []
        for start in range(0, len(rows), _CHUNKS_TOGETHER):
            some = rows[start : start + _CHUNKS_TOGETHER]
            cells = self._table.read(some, CHUNK)
            if len(cells) < len(some):
                return None
            chunks += [cells[row].value for row in some]
        return check(large.group, key, large.head.checksum, b"".join(chunks), large.head.token)

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """The rows of the group's ids in order; large values follow the page that has their heads."""
        self.check_open()
        where = locate(group)
        start, more = where.ids, True
        while more:
            rows, more = self._table.page(start, where.chunks, [*VALUES, KEY])
            if rows:
                start = rows[-1].row + b"\0"
            page: list[tuple[bytes, bytes]] = []
            larges: dict[bytes, _LargeRow] = {}
            for row in rows:
                cell = row.columns.get(CHECKPOINT) or row.columns.get(CREATED)
                if cell is None:
                    continue  # nobody has got to the end of creating it
                key = where.key(row.row)
                if key is None:
                    key = _long_key(row)
                value = decode(where, key, cell.value)
                if isinstance(value, bytes):
                    page.append((key, value))
                else:
                    larges[key] = _LargeRow(where, value, cell.timestamp)
            for one in pages(itertools.chain(page, self._read_large(larges))):
                yield one
                self.check_open()

    def _read_large(self, larges: Mapping[bytes, _LargeRow]) -> Iterator[tuple[bytes, bytes]]:
        """The large values that were seen under some keys, or what has replaced them, if anything has."""
        for key, large in larges.items():
            value = self._join(key, large)
            if value is None:
                (value,) = self.read([CheckpointId(large.group.name, key)])
            if value is not None:
                yield key, value

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        where = locate(group)
        for page in self._table.pages(where.ids, where.chunks, _KEYS_TOGETHER):
            keys = {row: where.key(row) for row, cell in page if cell.column in VALUES}
            long = self._table.read([row for row, key in keys.items() if key is None], KEY)
            for row, key in keys.items():
                if key is None:
                    if row not in long:
                        continue  # deleted since the page was read
                    key = long[row].value
                yield key
                self.check_open()

    def groups(self) -> Iterator[str]:
        self.check_open()
        start = FIRST_GROUP
        more = True
        while more:
            page = self._table.scan(start, b"", _GROUP_ROWS_TOGETHER)
            found: list[str] = []
            for row, cell in page:
                group, is_id = group_of(row)
                if is_id and cell.column not in VALUES and group.name not in found[-1:]:
                    start = row + b"\0"
                    continue
                start = group.end  # its ids come first, so whether it has one is known now
                if is_id and group.name not in found[-1:]:
                    found.append(group.name)
            for name in found:
                yield name
                self.check_open()
            more = len(page) == _GROUP_ROWS_TOGETHER

    def exists(self) -> bool:
        self.check_open()
        return self._table.exists()

    @property
    def concurrent_writes(self) -> int:
        """Each on a connection of its own; some are left for reading."""
        return max(1, self._options.connections // 2)

    @property
    def last_progress(self) -> float:
        """When the server last made some of the changes of a write."""
        return self._table.got_on

    def close(self) -> None:
        if self._open and self._owner == os.getpid():
            self._table.close()
        super().close()


def _long_key(row: Any) -> bytes:
    """The key of a row that has only the hash of it in its name."""
    if KEY not in row.columns:
        raise Corruption(f"row {row.row[:80]!r}: its key is gone")
    key: bytes = row.columns[KEY].value
    return key


def _cells(key: bytes, column: bytes, cell: bytes) -> dict[bytes, bytes]:
    """The columns of an id's row."""
    return {column: cell} if len(key) <= LONG_KEY_BYTES else {column: cell, KEY: key}
