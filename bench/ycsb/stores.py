"""Opens every store: a backend by its URL, or an embedded store to compare it with, synced on every write.

    raw:///path     rocksdict:///path     sqlite:///path     leveldb:///path     slatedb:///path (which does not sync)

The embedded ones keep bytes under keys and nothing more: no checksums, no listing, no deletes, no way back in after
closing. So they are stores for one comparison, not backends, and begin with a folder that is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, Self

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Survives
from safekeeper.backends.shared.local_files import make_folder, survives_on
from safekeeper.bench.ycsb.peers import EmbeddedStore, LevelDb, RawFile, RocksDb, SlateDb, Sqlite
from safekeeper.errors import BadUrl
from safekeeper.url import Url

BASELINES: dict[str, Callable[[Path], EmbeddedStore]] = {
    "raw": RawFile,
    "rocksdict": RocksDb,
    "sqlite": Sqlite,
    "leveldb": LevelDb,
    "slatedb": SlateDb,
}
"""By scheme."""


class Baseline(Backend):
    """An embedded store as far as the runner needs one: it writes values and reads them back."""

    scope = Scope.PROCESS

    def __init__(self, arm: Callable[[Path], EmbeddedStore], folder: Path) -> None:
        super().__init__()
        if folder.exists():
            raise BadUrl(f"{folder} is there already: a baseline begins with a new folder, choose another path")
        make_folder(folder.parent)
        self._arm = arm(folder)
        self.survives = Survives.PROCESS if isinstance(self._arm, SlateDb) else survives_on(folder)

    @classmethod
    def from_url(cls, url: Url) -> Self:
        return cls(BASELINES[url.scheme], Path(url.local_path()))

    def write(self, batch: Batch) -> Receipt:
        items = [(_flat(id), value) for id, value in batch.items() if value is not None]
        if len(items) < len(batch):
            self._cannot("delete")
        if len(items) == 1:
            self._arm.save(*items[0])
        else:
            self._arm.save_all(items)
        return Receipt(self.survives)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return [self._arm.fetch(_flat(id)) for id in ids]

    def keys(self, group: str) -> Iterator[bytes]:
        self._cannot("list keys")

    def groups(self) -> Iterator[str]:
        self._cannot("list groups")

    def close(self) -> None:
        if self._open:
            self._arm.close()
        super().close()

    def _cannot(self, what: str) -> NoReturn:
        raise NotImplementedError(f"a baseline cannot {what}: the runner needs no more than writes and reads")


def _flat(id: CheckpointId) -> bytes:
    return id.group.encode() + b"\0" + id.key


def open_store(url: str) -> Backend:
    """Open a baseline, or what `safekeeper.open` opens."""
    parsed = Url.parse(url)
    if parsed.scheme not in BASELINES:
        return safekeeper.open(url)
    try:
        return Baseline.from_url(parsed)
    except ModuleNotFoundError as error:
        where = ", on Python 3.12 or earlier" if error.name == "plyvel" else ""
        raise BadUrl(
            f"{parsed.scheme}: needs the module {error.name}: pip install 'safekeeper[bench]'{where}"
        ) from error
