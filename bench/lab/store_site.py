"""The data centre of `peace_site.py` with `hdfs:` on every server: what is measured is what people run.

Every server opens the store by its URL, in its own network namespace, and writes a checkpoint as one batch of values of
one chunk each, or saves them through a keeper. A write is done when it is acknowledged: chunks and head on the disks of
all their DataNodes (`sync=hsync`).

All servers are in one process: a store's threads, and Java's, are in the namespace of the thread that starts them. A
user for each gives it a connection of its own to the NameNode.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from unittest.mock import patch

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId, PlacementCounts
from safekeeper.backends.hdfs import backend as hdfs_backend
from safekeeper.backends.hdfs.client import Client, OutputStream
from safekeeper.backends.hdfs.options import HdfsFolder, HdfsOptions
from safekeeper.backends.hdfs.placement import Placement, Turn, Turns
from safekeeper.bench.lab.peace_site import REPLICAS, STOCK, Checkpoint, PeaceSite, Run, Setting, Written, placements
from safekeeper.keeper import SafeKeeper

T = TypeVar("T")
Through = Literal["hdfs", "keeper"]

_create = Client.create
_QUICK_MBIT = 1000.0

_SETTINGS = """\
<configuration>
 <property><name>dfs.client-write-packet-size</name><value>{}</value></property>
 <property><name>fs.permissions.umask-mode</name><value>000</value></property>
</configuration>
"""


def write_packet_size(folder: Path, chunk_bytes: int) -> None:
    """Let clients of HDFS find in *folder* how large packets are: as many times smaller as chunks are."""
    (folder / "hdfs-site.xml").write_text(_SETTINGS.format(chunk_bytes // 64))
    os.environ["HADOOP_CONF_DIR"] = str(folder)


class Watched:
    """A placement that notes when its first turn was taken: `Placement`."""

    def __init__(self, inner: Placement) -> None:
        self._inner = inner
        self.started = 0.0

    def chunks(self, count: int, replicas: int, checkpoint: str) -> AbstractContextManager[Turns]:
        return _WatchedTurns(self, self._inner.chunks(count, replicas, checkpoint))

    def ahead(self, count: int, replicas: int, checkpoint: str, *, wait: bool = True) -> AbstractContextManager[None]:
        return self._inner.ahead(count, replicas, checkpoint, wait=wait)

    def segment(self, replicas: int) -> Turn:
        return self._inner.segment(replicas)

    def counts(self) -> PlacementCounts:
        return self._inner.counts()

    def last_heard(self) -> float:
        return self._inner.last_heard()

    def close(self) -> None:
        self._inner.close()


class _WatchedTurns:
    def __init__(self, watched: Watched, inner: AbstractContextManager[Turns]) -> None:
        self._watched, self._inner = watched, inner
        self._turns: Turns | None = None

    def take(self) -> Turn:
        assert self._turns is not None
        turn = self._turns.take()
        self._watched.started = self._watched.started or time.monotonic()
        return turn

    def __enter__(self) -> Self:
        self._turns = self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._inner.__exit__(kind, error, traceback)


class StoreSite(PeaceSite):
    """The shaped network with HDFS on it, and a store of `hdfs:` on every server."""

    def __init__(self, setting: Setting, through: Through) -> None:
        super().__init__(setting)
        self._through = through
        self._values = [secrets.token_bytes(setting.chunk_bytes) for _ in range(2 * setting.chunks)]

    def __enter__(self) -> Self:
        super().__enter__()
        self.network.shape(_QUICK_MBIT, _QUICK_MBIT)
        return self

    def prepare(self, folder: Path) -> None:
        """Before the JVM starts: what clients find where Hadoop's settings are."""
        write_packet_size(folder, self._setting.chunk_bytes)

    def run(self, arm: str, checkpoints: Sequence[Checkpoint]) -> Run:
        """Let every server write its checkpoint once."""
        with placements(arm, self.topology().network(), self) as places:
            watched = [Watched(place) for place in places]
            with (
                self._opened(watched, arm) as stores,
                self._shaped(),
                ThreadPoolExecutor(len(checkpoints)) as submitters,
            ):
                began = time.monotonic()
                work = partial(self._write_through, stores=stores, watched=watched, began=began)
                written = list(submitters.map(work, checkpoints))
                counts = [place.counts() for place in places]
        self._clients[0].delete("/run")
        names = ("planned", "hits", "in_order", "unplanned")
        return Run(written, PlacementCounts(*(sum(getattr(c, name) for c in counts) for name in names)))

    @contextmanager
    def _shaped(self) -> Iterator[None]:
        """Stores are opened and closed, and clean up behind them, on wires that are quick: that is not measured."""
        self.network.shape(self._setting.wire_mbit, self._setting.link_mbit)
        try:
            yield
        finally:
            self.network.shape(_QUICK_MBIT, _QUICK_MBIT)

    @contextmanager
    def _opened(self, watched: Sequence[Watched], arm: str) -> Iterator[list[Backend]]:
        """A store on every server, each with its placement, and something written to it before the clock runs."""
        by_user = {f"node{n}": one for n, one in enumerate(watched)}

        def place(folder: HdfsFolder, options: HdfsOptions) -> Placement:
            assert folder.user is not None
            return by_user[folder.user]

        self._clients[0].make_folder("/run")  # by the superuser, for everybody
        with ExitStack() as stack:
            stack.enter_context(patch.object(hdfs_backend, "open_placement", place))
            if arm == STOCK and not self._setting.own_disk:  # as in the paper's experiment
                stack.enter_context(patch.object(Client, "create", _elsewhere))
            opened = [self._in(n, partial(self._open, f"node{n}")) for n in range(len(self.servers))]
            stores = [stack.enter_context(store) for store in opened]
            for n, store in enumerate(stores):
                warm = Batch({CheckpointId("warm", b"%d" % n): b"1"})
                self._in(n, partial(store.write, warm))
            for one in watched:
                one.started = 0.0
            yield stores

    def _open(self, user: str) -> Backend:
        size = self._setting.chunk_bytes
        options = f"replication={REPLICAS}&large={size}&chunk={size}&workers={self._setting.threads}"
        return safekeeper.open(f"hdfs://{user}@{self.name_node}/run?{options}")

    def _in(self, server: int, work: Callable[[], T]) -> T:
        """What *work* returns, done in the namespace of a server."""
        with ThreadPoolExecutor(1, initializer=self.servers[server].enter) as pool:
            return pool.submit(work).result()

    def _write_through(
        self, checkpoint: Checkpoint, stores: Sequence[Backend], watched: Sequence[Watched], began: float
    ) -> Written:
        server = checkpoint.server
        ids = [CheckpointId(f"server{server}", b"%d" % n) for n in range(checkpoint.chunks)]
        values = dict(zip(ids, self._values, strict=False))
        time.sleep(max(0.0, began + checkpoint.after - time.monotonic()))
        submitted = time.monotonic()
        self._in(server, partial(self._save, stores[server], values))
        return Written(submitted - began, watched[server].started - began, time.monotonic() - began)

    def _save(self, store: Backend, values: dict[CheckpointId, bytes]) -> None:
        if self._through == "hdfs":
            store.write(Batch(values))
            return
        with SafeKeeper(store, serializer=None, overflow="block", storage_workers=None, deadline=600) as keeper:
            for ticket in [keeper.save(id, value) for id, value in values.items()]:
                ticket.result()


def _elsewhere(client: Client, path: str, **given: Any) -> OutputStream:
    """`Client.create`, but not on the writer's own disk."""
    return _create(client, path, **(given | {"no_local": True}))
