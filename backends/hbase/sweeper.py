"""Removing the chunks of large values that nobody will ever finish or read: those of writers that died."""

from __future__ import annotations

from safekeeper.backends.hbase.layout import HEAD, VALUES, HBaseGroup, head_in, write_id_of
from safekeeper.backends.hbase.table import Table, delete
from safekeeper.backends.shared.server_clock import Clock

_PAGE = 64
_GROUPS = 10_000


class Sweeper:
    """Looks at a few chunks of a group at a time, going round, so that no write ever waits for all of them."""

    def __init__(self, table: Table, clock: Clock, after: float) -> None:
        self._table = table
        self._clock = clock
        self._after = int(after * 1_000_000)
        self._reached: dict[str, bytes] = {}

    def sweep_some(self, group: HBaseGroup) -> None:
        """Remove what is orphaned among the next chunks of *group*: old, and no head stands for it."""
        page = self._table.scan(self._reached.get(group.name, group.chunks), group.end, _PAGE, HEAD)
        if len(self._reached) >= _GROUPS:
            self._reached.clear()
        self._reached[group.name] = page[-1][0] + b"\0" if len(page) == _PAGE else group.chunks
        now = self._clock.next()
        old = {row: cell.value for row, cell in page if cell.timestamp < now - self._after}
        cells = self._table.read(list(set(old.values())), *VALUES)
        heads = {row: head for row, cell in cells.items() if (head := head_in(cell.value))}
        orphans = [
            delete(row)
            for row, head_row in old.items()
            if head_row not in heads or heads[head_row].write_id != write_id_of(group, row)
        ]
        if orphans:
            self._table.write(orphans, now)
