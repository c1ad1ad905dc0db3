"""Folders whose writers are gone: whoever compacts its own looks after them as well."""

from __future__ import annotations

from contextlib import suppress

from safekeeper.backend import Survives
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.claim import claiming, is_abandoned
from safekeeper.backends.log.compaction import MANY_SMALL, LogCompactor, Pace, is_worth_a_pass
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.writer import LogWriter
from safekeeper.backends.log.writer_folder import WriterFolder
from safekeeper.errors import Conflict, Unavailable


def tidy_abandoned(root: Root, pace: Pace, everything: bool = False) -> None:
    """Compact every folder that has no writer and is worth it; with *everything*, whatever has a dead record.

    Its writer for as long as that takes is this process. A folder whose writer died within a write is taken over in any
    case: nobody may drop a tombstone as long as it is open what that write was.
    """
    folders = root.refresh()
    if all(folder.writing for folder in folders):
        return
    try:
        with claiming(root.path, patience=0):
            abandoned = [folder for folder in folders if folder.path.is_dir() and is_abandoned(folder.path)]
    except Unavailable:
        return  # somebody claims just now, and may take any of them
    for folder in abandoned:
        if not (everything or _needs_care(root, folder)):
            continue
        appender = Appender.claim_abandoned(root, folder.path)
        if appender is None:
            continue
        try:
            with suppress(Conflict):  # then another process looks after it
                LogCompactor(root, appender.folder, LogWriter(appender, Survives.NOTHING)).run(pace, everything)
        finally:
            appender.close()


def _needs_care(root: Root, folder: WriterFolder) -> bool:
    return not folder.is_settled() or folder.small_segments() >= MANY_SMALL or is_worth_a_pass(root, folder)
