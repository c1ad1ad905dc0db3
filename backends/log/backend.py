"""`LogBackend`: the contract on top of the log of this process, which all handles of a root share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Self

from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    Compaction,
    Damage,
    Intact,
    Receipt,
    Stats,
    Survives,
    check_creation,
)
from safekeeper.backends.log.claim import writer_folders
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.process import Log, ThisProcess, share, unshare
from safekeeper.backends.log.salvage import Salvage
from safekeeper.backends.log.verify import verify
from safekeeper.backends.shared.local_files import (
    check_folder,
    check_local,
    os_errors_as_unavailable,
    survives_on,
    unavailable,
    unusable,
)
from safekeeper.url import Url


class LogBackend(Backend):
    """A handle of a log. All handles of a root in one process share its files and its writer."""

    atomic_batch = True
    url_options = (LogOptions,)

    def __init__(
        self, root: str | os.PathLike[str], options: LogOptions | None = None, files: Files | None = None
    ) -> None:
        super().__init__()
        self._root = Path(root)
        self._options = options or LogOptions()
        self._files = files or Files()
        check_folder(self._root)
        with os_errors_as_unavailable(self._root):
            check_local(self._root, shared=self._options.scope == "network")
            durable = survives_on(self._root)
        self.survives = durable if self._options.sync == "always" else Survives.NOTHING
        self.scope = self._options.scope_of_writes()
        self._log: Log | None = None
        self._written = False
        self._lock = Lock()

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `log:///absolute/path` or `log:relative/path`; the options are those of `LogOptions`."""
        options = url.options(LogOptions)
        return cls(url.local_path(), options)

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        if not len(batch):
            return Receipt(self.survives)
        try:
            log = self._log or self._shared(create=True)
            receipt = log.write(batch)
        except OSError as error:
            raise (unavailable if self._written else unusable)(self._root, error) from error
        self._written = True
        return receipt

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """Looked up and appended while no other process creates anything; the token is in the record."""
        self.check_open()
        check_creation(id, value, token)
        try:
            log = self._log or self._shared(create=True)
            created = log.create(id, value, token)
        except OSError as error:
            raise (unavailable if self._written else unusable)(self._root, error) from error
        self._written = True
        return created

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        try:
            log = self._log or self._find()
            return log.root.read(ids) if log else [None] * len(ids)
        except OSError as error:
            raise unavailable(self._root, error) from error

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            log, owner, here = self._find(), self._owner, ThisProcess
            for page in log.root.key_pages(group) if log else ():
                for key in page:
                    if not self._open or owner != here.pid:  # as `check_open`, which says why
                        self.check_open()
                    yield key

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """The records of *group* in the order of the files."""
        self.check_open()
        with os_errors_as_unavailable(self._root):
            log = self._find()
            for page in log.root.scan(group) if log else ():
                self.check_open()
                yield page

    def groups(self) -> Iterator[str]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            log = self._find()
            for group in log.root.groups() if log else ():
                self.check_open()
                yield group

    def compact(self) -> Compaction:
        """Rewrite whatever has a dead record in the folder of this process and in those of writers that are gone, as
        fast as it goes. Those of other live writers are theirs to compact."""
        self.check_open()
        with os_errors_as_unavailable(self._root):
            log = self._find()
            return log.compact() if log else Compaction(0, 0)

    def stats(self) -> Stats:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            log = self._find()
            return log.stats() if log else Stats(0, 0)

    def verify(self, checked: Callable[[int], object] = lambda _: None) -> Iterator[Damage]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for damage in verify(self._root, checked):
                self.check_open()
                yield damage

    def salvage(self, checked: Callable[[int], object] = lambda _: None) -> Iterator[Intact | Damage]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for found in Salvage(self._root, checked).run():
                self.check_open()
                yield found

    def exists(self) -> bool:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            return bool(writer_folders(self._root))

    def _find(self) -> Log | None:
        """The log behind this handle; None if there is no such folder, which then has nothing in it."""
        with suppress(FileNotFoundError):
            return self._shared(create=False)
        return None

    def _shared(self, create: bool) -> Log:
        with self._lock:
            self.check_open()
            if self._log is None:
                if create:
                    self._files.make_folder(self._root)
                self._log = share(self._root, self._options, self._files, self.survives)
            return self._log

    def close(self) -> None:
        if self._owner != os.getpid():
            return super().close()
        with self._lock:
            log, self._log = self._log, None
            super().close()
        return unshare(log) if log else None
