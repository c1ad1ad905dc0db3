"""What other folders know of the ids of one folder: which of its records they have replaced, and which hide theirs.

A put that another folder has replaced is as good as a tombstone: of no use but to hide older puts of its own folder.
And a tombstone is needed as long as any folder holds an older record of its id, or a writer might still bring one: one
that had chosen its sequence before the tombstone was written, and has not finished.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from safekeeper.backends.log.index_file import IndexTable, common_entries
from safekeeper.backends.log.location import segment_of
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.writer_folder import AllView, WriterFolder
from safekeeper.errors import Corruption

_MOST_COMPARED: Final = 50_000  # of the ids that two folders share, in one pass; of the others the worst is assumed

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LivenessMasks:
    """What is true of each entry of a folder's table."""

    replaced: Mask
    """Another folder has a newer record, which is durable."""
    hiding: Mask
    """Another folder has an older record, or may get one."""


def compare(root: Root, folder: WriterFolder, table: IndexTable) -> LivenessMasks:
    """What the other folders of *root* know of the ids in *table*, which is that of *folder*."""
    nothing = LivenessMasks(np.zeros(len(table), bool), np.zeros(len(table), bool))
    others = [other for other in root.folders() if other is not folder]
    if not others:
        return nothing
    settled = all(other.is_settled() for other in others)  # before they are caught up with
    try:
        views = [view for view in root.look(lambda each, _: each.view_all()) if view.folder is not folder]
    except Corruption:  # of which folder, a reader is told; of the ids the worst is assumed, and our own rubbish can go
        return LivenessMasks(nothing.replaced, np.ones(len(table), bool))
    known = settled and {view.folder for view in views} == {*others}
    known = known and all(other.manifest_is_durable() for other in others)  # or what is gone from it may come back
    replaced, hiding = nothing.replaced, np.full(len(table), not known)
    with folder.lock:
        own = _Stamps(folder.view_all())
    with closing(own):
        for view in views:
            with closing(_Stamps(view)) as theirs:
                _compare_two(table, own, view.table.merged(view.new), theirs, replaced, hiding)
    return LivenessMasks(replaced, hiding)


def _compare_two(
    table: IndexTable, own: _Stamps, theirs: IndexTable, other: _Stamps, replaced: Mask, hiding: Mask
) -> None:
    if table.seed != theirs.seed and len(theirs):
        hiding[:] = True
        return
    here, there = common_entries(table, theirs)
    if len(here) > _MOST_COMPARED:
        hiding[here] = True
        some = np.random.default_rng().choice(len(here), _MOST_COMPARED, replace=False)  # others in the next pass
        here, there = here[some], there[some]
    for at, their_at in zip(here.tolist(), there.tolist(), strict=True):
        try:
            stamp = other.of(int(theirs.locations[their_at]))
            newer = stamp > own.of(int(table.locations[at]))
        except Corruption:  # its file was compacted away meanwhile, or it is damaged: whoever reads it will say so
            hiding[at] = True
            continue
        replaced[at] |= newer and stamp[0] <= other.durable
        hiding[at] |= not newer


class _Stamps:
    """Reads the sequence and epoch of records, through files of its own: those of a view may go away meanwhile."""

    def __init__(self, view: AllView) -> None:
        self.durable = view.folder.durable
        self._segments = view.copies()

    def of(self, location: int) -> tuple[int, int]:
        """The sequence and epoch of the record at *location*."""
        return self._segments[segment_of(location)].read_stamp(location)

    def close(self) -> None:
        """Give back the files."""
        self._segments.close()
