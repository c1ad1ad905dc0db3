"""Folders whose writers are gone: whoever compacts its own looks after them as well, and whoever reads settles what
they have left open."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from typing import Final

from safekeeper.backend import Survives
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.claim import claiming, has_writer, is_abandoned, is_claiming
from safekeeper.backends.log.compaction import MANY_SMALL, LogCompactor, Pace, is_worth_a_pass
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.writer import LogWriter
from safekeeper.backends.log.writer_folder import WriterFolder
from safekeeper.errors import Conflict, Unavailable

_PATIENCE: Final = 10.0  # seconds that a reader waits for another process that claims a folder
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


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


def settle(root: Root, folder: WriterFolder) -> bool:
    """Take over a folder in which there is more than its writer has answered, if that one is gone; whether it is so.

    A block behind what the status calls visible was never answered, or it was, and the status is old: the file system
    was mounted again since. Nobody can tell which. To take the folder over is right in both cases: what is whole counts
    from then on, durable and for everybody at the same moment.
    """
    until = time.monotonic() + _PATIENCE
    while has_writer(folder.path):
        if _is_written(root, folder):
            folder.state.highest = folder.state.sequence  # its status is not old, and says what is answered
            return False
        if folder.is_answered():
            return True
        if time.monotonic() > until:
            raise Unavailable(
                f"{root.path}: another process has been claiming a folder for {_PATIENCE:g} s: is it stopped?"
            )
        time.sleep(0.005)
    try:
        appender = Appender.claim_abandoned(root, folder.path, _PATIENCE)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        folder.see_everything()  # we cannot make it so, but rather too much than too little of what was acknowledged
        return True
    if appender is not None:
        appender.close()
    return True  # also if somebody else was faster


def _is_written(root: Root, folder: WriterFolder) -> bool:
    """Whether it is a writer that holds the lock of *folder*, and not somebody who is taking it over."""
    return (
        not is_claiming(root.path)
        and has_writer(folder.path)
        and not is_claiming(root.path)  # nor was there one for a moment
        and folder.path.is_dir()
    )


def _needs_care(root: Root, folder: WriterFolder) -> bool:
    return not folder.is_settled() or folder.small_segments() >= MANY_SMALL or is_worth_a_pass(root, folder)
