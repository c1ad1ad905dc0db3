"""The data centre of `bench/studies/peace.py`: HDFS on a shaped network, with a writer on every server."""

from __future__ import annotations

import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Self

from safekeeper.backend import PlacementCounts
from safekeeper.backends.hdfs.client import Client
from safekeeper.backends.hdfs.peace.client import PeacePlacement
from safekeeper.backends.hdfs.peace.coordinator import Coordinator
from safekeeper.backends.hdfs.peace.network import Network
from safekeeper.backends.hdfs.peace.planner import Rules
from safekeeper.backends.hdfs.peace.schedule import Schedule
from safekeeper.backends.hdfs.peace.template import Place
from safekeeper.backends.hdfs.peace.topology import Topology, link_capacity
from safekeeper.backends.hdfs.placement import Placement, StockPlacement, Turn
from safekeeper.bench.lab.shaped_network import ShapedNetwork, ShapedServer
from safekeeper.dev.hdfs import HdfsCluster, HdfsNode
from safekeeper.errors import SafekeeperError

REPLICAS = 3
STOCK, PLANNED, PEACE, STRICT = "stock", "planned", "Peace", "strict"


class SparkSiteStuck(SafekeeperError):
    """With Spark on the servers, something did not happen in time. The message says what."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured on."""

    per_rack: int = 4
    wire_mbit: float = 10.0
    link_mbit: float = 10.0
    wire: int = 2
    """Chunks a timestep on a server's wire."""
    chunk_bytes: int = 1 << 20
    chunks: int = 4
    """Of each checkpoint; where sizes differ, on average."""
    threads: int = 4
    """With which every writer writes, in all arms."""
    own_disk: bool = False
    """Whether the first replica is on the writer's own disk, in all arms: HDFS' own rule, not the paper's."""
    racks: int = 2

    @property
    def link(self) -> int:
        """Chunks a timestep between the racks."""
        return link_capacity(self.link_mbit, self.wire_mbit, self.wire)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one server has to write, and when it finds out."""

    server: int
    after: float
    chunks: int


@dataclass(frozen=True, slots=True)
class Written:
    """When one checkpoint was submitted, could start and was complete; seconds from the beginning of the run."""

    submitted: float
    started: float
    done: float


@dataclass(frozen=True, slots=True)
class Run:
    """One arm in one round."""

    written: Sequence[Written]
    counts: PlacementCounts

    @property
    def own_start(self) -> float:
        """The mean time of a checkpoint from its writer's own start."""
        return statistics.mean(one.done - one.started for one in self.written)

    @property
    def submission(self) -> float:
        """The mean time of a checkpoint from its submission."""
        return statistics.mean(one.done - one.submitted for one in self.written)

    @property
    def everything(self) -> float:
        """The time until the last is done."""
        return max(one.done for one in self.written)


# --- the arms ---------------------------------------------------------------------------------------------------------


class PlannedPlacement(StockPlacement):
    """Planned nodes at once: what is left of Peace without turns."""

    def __init__(self, schedule: Schedule, lock: Lock, writer: str) -> None:
        super().__init__()
        self._schedule, self._lock, self._writer = schedule, lock, writer

    def take(self) -> Turn:
        """A turn, now."""
        with self._lock:
            return Turn(self._tally, self._schedule.stand(self._writer, REPLICAS).nodes)


@contextmanager
def placements(arm: str, network: Network, site: PeaceSite) -> Iterator[list[Placement]]:
    """How each server places its chunks in an arm."""
    with ExitStack() as stack:
        if arm == STOCK:
            yield [StockPlacement() for _ in site.servers]
        elif arm == PLANNED:
            schedule, lock = Schedule(network), Lock()
            yield [PlannedPlacement(schedule, lock, address) for address in site.addresses]
        else:
            secret = secrets.token_hex()
            rules: Rules = "paper" if arm == STRICT else "ours"
            coordinator = stack.enter_context(Coordinator(network, secret, host=site.network.host, rules=rules))
            where = (site.network.host, coordinator.port)
            made = [PeacePlacement(where, secret, host=server.address) for server in site.servers]
            for one in made:
                stack.enter_context(closing(one))
            yield list(made)


# --- the site ---------------------------------------------------------------------------------------------------------


class PeaceSite:
    """The shaped network with HDFS on it, and a client on every server."""

    def __init__(self, setting: Setting) -> None:
        self._stack = ExitStack()
        self._setting = setting
        self._data = secrets.token_bytes(setting.chunk_bytes)
        self.network = ShapedNetwork({f"/rack{n}": setting.per_rack for n in range(1, setting.racks + 1)})
        self.addresses: list[str] = []
        """The servers' transfer addresses."""
        self.name_node = ""
        """The NameNode's address, with its port."""

    @property
    def servers(self) -> list[ShapedServer]:
        """The servers, in the order of their racks."""
        return self.network.servers

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="safekeeper-peace-")))
            self.prepare(folder)
            stack.enter_context(self.network)
            nodes = [HdfsNode(server.address, server.rack, server.prefix) for server in self.servers]
            cluster = stack.enter_context(HdfsCluster(folder, nodes, name_node=HdfsNode(self.network.host)))
            self.name_node = cluster.name_node.address
            self.addresses = [node.address for node in cluster.data_nodes]
            self._pools = [stack.enter_context(self._pool(server)) for server in self.servers]
            self._clients = [
                pool.submit(Client, f"hdfs://{cluster.name_node.address}", self._client_settings(n)).result()
                for n, pool in enumerate(self._pools)
            ]
            for client in self._clients:
                stack.callback(client.close)
            self.network.shape(self._setting.wire_mbit, self._setting.link_mbit)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prepare(self, folder: Path) -> None:
        """What is to be done before anything is started; *folder* is there for as long as the site is."""

    def _client_settings(self, number: int) -> dict[str, str]:
        return {
            # A setting of its own gives a client its own connection to the NameNode, made where the client is: by its
            # address the NameNode knows the writer.
            "ipc.client.connection.maxidletime": str(600_000 + number),
            # Everything is so many times smaller than in a data centre: packets, which DataNodes take in whole before
            # they pass them on, must be, too.
            "dfs.client-write-packet-size": str(self._setting.chunk_bytes // 64),
        }

    def _pool(self, server: ShapedServer) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._setting.threads, initializer=server.enter)

    def topology(self) -> Topology:
        """What the coordinator is told."""
        racks = {address: s.rack for address, s in zip(self.addresses, self.servers, strict=True)}
        places = [Place.SAME_NODE, Place.OTHER_RACK, Place.THAT_RACK] if self._setting.own_disk else []
        return Topology(racks, self._setting.wire, self._setting.link, places=places)

    def run(self, arm: str, checkpoints: Sequence[Checkpoint]) -> Run:
        """Let every server write its checkpoint once."""
        for pool in self._pools:  # every thread is in its place before the clock runs
            list(pool.map(lambda _: time.sleep(0.01), range(self._setting.threads)))
        with (
            placements(arm, self.topology().network(), self) as places,
            ThreadPoolExecutor(len(checkpoints)) as submitters,
        ):
            began = time.monotonic()
            futures = [submitters.submit(self._write, arm, one, places[one.server], began) for one in checkpoints]
            written = [future.result() for future in futures]
            counts = [place.counts() for place in places]
        self._clients[0].delete("/run")
        total = PlacementCounts(
            *(sum(getattr(c, name) for c in counts) for name in ("planned", "hits", "in_order", "unplanned"))
        )
        return Run(written, total)

    def _write(self, arm: str, checkpoint: Checkpoint, placement: Placement, began: float) -> Written:
        time.sleep(max(0.0, began + checkpoint.after - time.monotonic()))
        submitted = time.monotonic()
        starts: list[float] = []
        with placement.chunks(checkpoint.chunks, REPLICAS, f"server{checkpoint.server}") as turns:

            def write(chunk: int) -> None:
                with turns.take() as turn:
                    starts.append(time.monotonic())
                    path = f"/run/{checkpoint.server}-{chunk}"
                    no_local = arm == STOCK and not self._setting.own_disk
                    self._write_chunk(self._clients[checkpoint.server], path, turn, no_local=no_local)

            pool = self._pools[checkpoint.server]
            futures: list[Future[None]] = [pool.submit(write, chunk) for chunk in range(checkpoint.chunks)]
            for future in futures:
                future.result()
        return Written(submitted - began, min(starts) - began, time.monotonic() - began)

    def _write_chunk(self, client: Client, path: str, turn: Turn, *, no_local: bool) -> None:
        stream = client.create(
            path,
            replication=REPLICAS,
            block_size=self._setting.chunk_bytes + 512,  # a block that is full tells its pipeline no more
            favoured=turn.favoured,
            no_local=no_local,
        )
        stream.write(self._data)
        stream.hflush()
        turn.written_to(stream.pipeline())
        stream.close()
