"""One table of HBase, through the calls of its Thrift server that do what they say.

- A row is either put or deleted, never both in one call: the server makes two calls of that.
- Everything carries a timestamp, so that it can be sent twice.
- Nothing is left open on the server between two calls.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from safekeeper.backends.hbase.connections import Connections
from safekeeper.backends.hbase.errors import MissingTable, TableExists, explain_opening
from safekeeper.backends.hbase.layout import FAMILY, TOKEN
from safekeeper.backends.hbase.options import HBaseOptions, TableAddress
from safekeeper.backends.hbase.thrift import BatchMutation, ColumnDescriptor, Mutation, Scan
from safekeeper.backends.shared import server_clock as clock
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.errors import Unavailable

_READ_BYTES = 8 * 1024 * 1024
"""How much an answer should have at most."""
_FIRST_READ, _MOST_READ = 32, 1000
_PAGE_ROWS = 4096
_FIRST_STEP, _MOST_STEP = 32, 512
"""How many rows of a page the server sends at once. The next ones may be larger: this is the bound."""
_KEYS_ONLY = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"


RowChange: TypeAlias = Any
"""What one call does to one row, in the driver's form."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a column of a row, and since when."""

    value: bytes
    timestamp: int
    column: bytes


def put(row: bytes, cells: Mapping[bytes, bytes]) -> RowChange:
    """Sets columns of *row*, all or none of them; into the write-ahead log, which is the default."""
    return BatchMutation(row, [Mutation(column=column, value=value) for column, value in cells.items()])


def delete(row: bytes) -> RowChange:
    """Removes everything in *row*."""
    return BatchMutation(row, [Mutation(isDelete=True, column=FAMILY)])


class Table:
    """A table that may not exist yet: then it is empty, and the first write creates it."""

    def __init__(self, address: TableAddress, options: HBaseOptions) -> None:
        self._name = address.table.encode()
        self._address = address
        self._create = options.create
        self._connections = Connections(address, options)
        self.got_on = 0.0
        """When the server last made a change, as `time.monotonic` tells it."""
        self._exists = False
        self._creating = threading.Lock()

    def check(self) -> None:
        """Raise unless the server is there and the table, if it is there too, can be used."""
        try:
            self.exists()
        except Unavailable as error:
            raise explain_opening(self._address, error) from error

    def exists(self) -> bool:
        """Whether the table exists. It is asked by itself: of several rows of a missing table the server says nothing
        but that it could not read them."""
        if not self._exists:
            try:
                families = self._connections.run(lambda client: client.getColumnDescriptors(self._name))
            except MissingTable:
                return False
            if FAMILY + b":" not in families:
                raise Misconfigured(f"{self._address}: the table {self._address.table} has no family 'data'")
            self._exists = True
        return self._exists

    def write(self, rows: Sequence[RowChange], timestamp: int) -> None:
        """Make changes, each row whole or not at all."""
        if len(rows) == 1:  # the server has a shorter way for a single one
            (only,) = rows
            self._connections.run(
                lambda client: client.mutateRowTs(self._name, only.row, only.mutations, timestamp, {})
            )
        else:
            self._connections.run(lambda client: client.mutateRowsTs(self._name, rows, timestamp, {}))
        self.got_on = time.monotonic()

    def check_and_put(self, row: bytes, gate: tuple[bytes, bytes], cell: tuple[bytes, bytes]) -> bool:
        """Set a column of *row* if another one, its gate, has a certain value; whether it had.

        The cell gets the timestamp of the gate: a server never gives less than the cell has that it has looked at.
        """
        change = Mutation(column=cell[0], value=cell[1])
        done: bool = self._connections.run(lambda client: client.checkAndPut(self._name, row, *gate, change, {}))
        self.got_on = time.monotonic()
        return done

    def read(self, rows: Sequence[bytes], *columns: bytes) -> dict[bytes, Cell]:
        """One column of *rows*, of those that have it; of several *columns* the first that a row has."""
        found: dict[bytes, Cell] = {}
        if not self.exists():
            return found
        start, count = 0, _FIRST_READ
        while start < len(rows):
            answer = self._ask_rows(rows[start : start + count], columns)
            found |= answer
            start += count
            average = sum(len(cell.value) for cell in answer.values()) // count + 1
            count = max(1, min(_MOST_READ, 4 * count, _READ_BYTES // average))
        return found

    def _ask_rows(self, rows: Sequence[bytes], columns: Sequence[bytes]) -> dict[bytes, Cell]:
        if len(rows) == 1:  # as in `write`
            results = self._connections.run(lambda client: client.getRowWithColumns(self._name, rows[0], columns, {}))
        else:
            results = self._connections.run(lambda client: client.getRowsWithColumns(self._name, rows, columns, {}))
        return {row.row: cell for row in results if (cell := _first_of(row, columns))}

    def scan(self, start: bytes, stop: bytes, count: int, column: bytes | None = None) -> list[tuple[bytes, Cell]]:
        """The first *count* rows from *start* on, before *stop*, with one column, or with empty cells.

        The next page starts at the last row and a NUL. No scanner stays open, so none can expire or be lost.
        """
        what = Scan(startRow=start, stopRow=stop, caching=count)
        if column is None:
            what.filterString = _KEYS_ONLY
        else:
            what.columns = [column]

        def ask(client: Any) -> list[Any]:
            scanner = client.scannerOpenWithScan(self._name, what, {})
            rows: list[Any] = client.scannerGetList(scanner, count)
            client.scannerClose(scanner)
            return rows

        rows = self._connections.run(ask) if self.exists() else []
        return [(row.row, _cell(name, cell)) for row in rows for name, cell in row.columns.items()]

    def page(self, start: bytes, stop: bytes, columns: Sequence[bytes]) -> tuple[list[Any], bool]:
        """Rows from *start* on, before *stop*, with some *columns*, as the driver gives them; whether there are more.

        As many as a scanner that is open during this call gives in a moment.
        """
        what = Scan(startRow=start, stopRow=stop, caching=_MOST_STEP, columns=columns)

        def ask(client: Any) -> tuple[list[Any], bool]:
            scanner = client.scannerOpenWithScan(self._name, what, {})
            rows: list[Any] = []
            size, step, more = 0, _FIRST_STEP, True
            while more and size < _READ_BYTES and len(rows) < _PAGE_ROWS:
                got = client.scannerGetList(scanner, step)
                rows += got
                size += sum(len(cell.value) for row in got for cell in row.columns.values())
                more = len(got) == step
                step = max(1, min(_MOST_STEP, 4 * step, _READ_BYTES * len(rows) // (size + 1)))
            client.scannerClose(scanner)
            return rows, more

        return self._connections.run(ask) if self.exists() else ([], False)

    def pages(self, start: bytes, stop: bytes, count: int) -> Iterator[list[tuple[bytes, Cell]]]:
        """All rows from *start* on, before *stop*, a page at a time, with the first cell of each, empty."""
        while True:
            page = self.scan(start, stop, count)
            yield page
            if len(page) < count:
                return
            start = page[-1][0] + b"\0"

    def _create_table(self) -> None:
        """Create the table, unless somebody else has done it meanwhile."""
        family = ColumnDescriptor(name=FAMILY + b":", maxVersions=1, bloomFilterType="ROW", blockCacheEnabled=True)
        with self._creating, suppress(TableExists):
            if not self.exists():
                if not self._create:
                    raise MissingTable(
                        f"{self._address}: there is no table {self._address.table} and create=no: create it"
                    )
                self._connections.run(lambda client: client.createTable(self._name, [family]))

    def read_clock(self) -> clock.Reading | None:
        """What the server's clock shows: the time that it gives to a put without one. Creates the table.

        None if somebody else has used the same row in between.
        """
        if not self.exists():
            self._create_table()
        row = b"\0\0\0" + secrets.token_bytes(1)
        token, sent, received = self._put_token(row)
        cell = self._ask_rows([row], [TOKEN]).get(row)
        if cell is None or cell.value != token:
            return None
        return clock.Reading(sent, received, cell.timestamp * 1000)

    def _put_token(self, row: bytes) -> tuple[bytes, int, int]:
        """Put a token without a timestamp of ours: which one, when it was sent, and when the answer came.

        Nobody needs it after a crash, so the answer does not wait for the write-ahead log. That of a real put does,
        which makes it take longer than the clock's bounds are apart.
        """

        def ask(client: Any) -> tuple[bytes, int, int]:
            token = secrets.token_bytes(8)  # made anew when this is done again: the first one may still arrive, late
            change = Mutation(column=TOKEN, value=token, writeToWAL=False)
            sent = clock.now()
            client.mutateRow(self._name, row, [change], {})
            return token, sent, clock.now()

        return self._connections.run(ask)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()


def _first_of(row: Any, columns: Sequence[bytes]) -> Cell | None:
    """The first of *columns* that *row* has, as the driver gave it."""
    return next((_cell(name, row.columns[name]) for name in columns if name in row.columns), None)


def _cell(name: bytes, cell: Any) -> Cell:
    return Cell(cell.value, cell.timestamp, name)
