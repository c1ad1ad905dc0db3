"""Folders whose writers are gone: whoever compacts its own looks after them as well."""

from __future__ import annotations

from safekeeper.backend import Survives
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.compaction import MANY_SMALL, Compactor, Pace, is_worth_a_pass
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.store import Store
from safekeeper.backends.log.writer import Writer


def tidy_abandoned(root: Root, pace: Pace, everything: bool = False) -> None:
    """Compact every folder that has no writer and is worth it; with *everything*, whatever has a dead record.

    Its writer for as long as that takes is this process. A folder whose writer died within a write is taken over in any
    case: nobody may drop a grave as long as it is open what that write was.
    """
    for store in root.refresh():
        if store.writing or not (everything or _needs_care(root, store)):
            continue
        appender = Appender.claim_abandoned(root, store.folder)
        if appender is None:
            continue
        try:
            Compactor(root, appender.store, Writer(appender, Survives.NOTHING)).run(pace, everything)
        finally:
            appender.close()


def _needs_care(root: Root, store: Store) -> bool:
    return not store.is_settled() or store.small_segments() >= MANY_SMALL or is_worth_a_pass(root, store)
