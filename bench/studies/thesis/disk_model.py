"""The thesis' cost model of a disk, its section 3.4: what it predicts for the thesis' disk and for this one.

    one file per id:   N (seek + rotation) + transfer(N B)
    append:            N rotation + (N B / track) seek + transfer(N B)
    read, either:      N (access + transfer(B)), access = seek + rotation

N states of B bytes, each durable. The thesis names 7200 rpm and no more: the rest is what such disks of 2010 had. Of
this disk, `rotation` is what one synced write behind the last one takes, `seek` what it takes more at a random offset.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from safekeeper import Batch, CheckpointId
from safekeeper.backend import Backend
from safekeeper.bench.harness.interleave import Interleaved, interleave
from safekeeper.bench.studies.thesis.finding import Finding, ThesisScale, ThesisSite, alone
from safekeeper.bench.ycsb.stores import open_store

_BYTES = 1024
_READS = 1000
_PROBES = 200
_PROBED = 64 << 20


@dataclass(frozen=True, slots=True)
class Disk:
    """What the model knows of a disk: seconds and bytes."""

    seek: float
    rotation: float
    track: int
    bytes_per_second: float

    def file_per_id(self, size: int) -> float:
        """Seconds to write a state into a file of its own."""
        return self.seek + self.rotation + size / self.bytes_per_second

    def append(self, size: int) -> float:
        """Seconds to append a state to a file."""
        return self.rotation + size / self.track * self.seek + size / self.bytes_per_second

    def read(self, size: int) -> float:
        """Seconds to read a state, however it was written."""
        return self.seek + self.rotation + size / self.bytes_per_second


THESIS_DISK = Disk(seek=8.5e-3, rotation=4.17e-3, track=500_000, bytes_per_second=100e6)


def probe(folder: Path) -> Disk:
    """This disk, as the model sees it."""
    path = folder / "probe"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        started = time.perf_counter()
        for start in range(0, _PROBED, 1 << 20):
            os.pwrite(fd, bytes(1 << 20), start)
        os.fsync(fd)
        rate = _PROBED / (time.perf_counter() - started)
        offsets = [4096 * number for number in range(_PROBES)]
        rotation = _seconds(fd, offsets)
        anywhere = _seconds(fd, [4096 * Random(number).randrange(_PROBED >> 12) for number in offsets])  # noqa: S311
        return Disk(max(anywhere - rotation, 0.0), rotation, 500_000, rate)
    finally:
        os.close(fd)
        path.unlink()


def _seconds(fd: int, offsets: Sequence[int]) -> float:
    """The median of a synced write."""
    times = []
    for offset in offsets:
        started = time.perf_counter()
        os.pwrite(fd, bytes(_BYTES), offset)
        os.fdatasync(fd)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def predictions(site: ThesisSite, scale: ThesisScale) -> Finding:
    """3.4: what the model says, and what a single thread measures."""
    finding = Finding(
        f"3.4  the thesis' disk model, states of {_BYTES:,} bytes, each durable, one thread",
        "a file per id pays a seek and a rotation for each state, an append the rotation; reads cost the same",
        header=("operation", "thesis' disk, ms", "this disk, ms", "measured here, ms (low-high)"),
    )
    here = probe(site.folder)
    writes, reads = _measure(site, scale)
    for name, disk in (("thesis'", THESIS_DISK), ("this", here)):
        finding.remarks.append(
            f"{name} disk: seek {disk.seek * 1e3:.3f} ms, rotation {disk.rotation * 1e3:.3f} ms, "
            f"transfer {disk.bytes_per_second / 1e6:.0f} MB/s"
        )
    for what, result, arms in (("write", writes, ("file", "log")), ("read", reads, ("file", "log"))):
        for arm in arms:
            model = Disk.read if what == "read" else Disk.append if arm == "log" else Disk.file_per_id
            found = result.rate(arm)
            finding.table.add_row(
                f"{what}, {arm}",
                *(f"{model(disk, _BYTES) * 1e3:.3f}" for disk in (THESIS_DISK, here)),
                f"{1e3 / found.median:.3f} ({1e3 / found.high:.3f}-{1e3 / found.low:.3f})",
            )
    _compare(finding, here, writes, reads)
    return finding


def _compare(finding: Finding, here: Disk, writes: Interleaved, reads: Interleaved) -> None:
    found = writes.ratio("log", "file")
    for name, disk in (("the thesis' disk", THESIS_DISK), ("this disk", here)):
        finding.beside(
            f"3.4 log's writes as fast as file's, by the model of {name}",
            found,
            disk.file_per_id(_BYTES) / disk.append(_BYTES),
            "x measured",
            more="a file per id is two syncs, of itself and of its folder, each with the file system's journal",
            less="nothing here has a seek to save",
        )
    finding.beside(
        "3.4 log's reads as fast as file's, by the model",
        reads.ratio("log", "file"),
        1,
        "x measured",
        more="both come from the system's cache, where opening a file costs more than looking at an index",
        less="both come from the system's cache: what is left is Python, which does more for log",
    )
    finding.beside(
        "3.4 a write of log, by the model of this disk",
        alone(1e3 / writes.rate("log").median),
        here.append(_BYTES) * 1e3,
        "ms",
        more="what the model leaves out: the checksums, the status for other processes, and Python",
        less="a synced write in one call (RWF_DSYNC) is quicker than the two that were probed",
    )


def _measure(site: ThesisSite, scale: ThesisScale) -> tuple[Interleaved, Interleaved]:
    count = min(scale.operations, 2000)
    stores = {url.partition(":")[0]: open_store(url) for url in site.urls("3.4")}
    try:
        arms = {name: partial(_write, store, count) for name, store in stores.items()}
        writes = interleave(arms, scale.rounds, "writes")
        looks = {name: partial(_read, store, min(count, _READS)) for name, store in stores.items()}
        return writes, interleave(looks, scale.rounds, "reads")
    finally:
        for store in stores.values():
            store.close()


def _write(store: Backend, count: int) -> float:
    value = os.urandom(_BYTES)
    started = time.perf_counter()
    for number in range(count):
        store.write(Batch({CheckpointId("model", b"%d" % number): value}))
    return count / (time.perf_counter() - started)


def _read(store: Backend, count: int) -> float:
    started = time.perf_counter()
    for number in range(count):
        store.read([CheckpointId("model", b"%d" % number)])
    return count / (time.perf_counter() - started)
