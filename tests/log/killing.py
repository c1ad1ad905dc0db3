"""The end of a writer without a word, and a second one, in this process."""

from safekeeper.backends.log import LogBackend, claim, shared


def kill(store: LogBackend) -> None:
    """Do to *store* what `kill -9` does: its locks are free, and nothing is flushed, sealed or closed in order.

    A child of a fork drops what it inherited in the same way.
    """
    log = store._log
    if log is not None and log._writing is not None:
        log._writing.background.stop()
        log._writing.appender._abandon()
        log.root.close()
    claim._close_in_child()
    shared._forget_in_child()
    store._log = None
    store.close()


def as_another_process() -> None:
    """Let the next handle of a root share nothing with those before it, as if it were opened by another process."""
    shared._forget_in_child()
