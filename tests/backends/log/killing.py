"""The end of a writer without a word, and a second one, in this process."""

from typing import Any

from safekeeper.backends.log import claim, process
from safekeeper.backends.log.backend import LogBackend


def kill(store: LogBackend) -> None:
    """Do to *store* what `kill -9` does: its lock is free, and nothing is flushed, sealed or closed in order."""
    log = store._log
    if log is not None and log._writing is not None:
        log._writing.background.stop()
        log._writing.appender._close_files()
        log.root.close()
        claim.release(log._writing.appender._lock_fd)
    process._forget_in_child()
    store._log = None
    store.close()


def open_as_another_process(*arguments: Any) -> LogBackend:
    """A handle that shares nothing with those that were opened before, as if it were that of another process."""
    process._forget_in_child()
    store = LogBackend(*arguments)
    store._shared(create=True)
    return store
