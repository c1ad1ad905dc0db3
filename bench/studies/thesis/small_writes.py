"""Table 5.1: writes of 10 bytes into one file, one after the other or at random offsets.

The thesis' table contradicts itself: it speaks of a million operations where a million bytes were written, and a
million syncs do not fit into 0.035 s. So there are two columns here, a sync for each operation and one at the end, both
with their count; what is compared is how much longer random offsets take, which the table gives without its counts.
The file is written before, as large as the scale says: in a small one random offsets are not random.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

from safekeeper.bench.harness.interleave import Spread, interleave
from safekeeper.bench.studies.thesis.finding import Finding, ThesisScale, ThesisSite

_WRITTEN = b"0123456789"
_CHUNK = bytes(1 << 20)
_LOCAL = {True: (0.33 / 0.035, 1579 / 3.27), False: (0.31 / 0.005, 1381 / 1.13)}
"""Random over sequential offsets on the thesis' local disk, with and without fsync: for 10^6, and for 10^8."""


def small_writes(site: ThesisSite, scale: ThesisScale) -> Finding:
    """Table 5.1, without its contradictions: one sync each, or one at the end."""
    counts = {True: scale.small_writes // 100, False: scale.small_writes}
    finding = Finding(
        f"table 5.1  seconds for 1,000 writes of 10 bytes into a file of {scale.small_file >> 20:,} MiB "
        f"({counts[True]:,} with a sync each, {counts[False]:,} without), {scale.rounds} rounds",
        "local disk, seconds for 10^6, 10^7, 10^8 bytes: sequential with fsync .035, .32, 3.27, random .33, 3.95, "
        "1579; without .005, .04, 1.13 and .31, 3.68, 1381; NFS with fsync .03, .32, 3.18 and .31, 3.75, 44.8; "
        "without .005, .04, .39 and .29, 3.38, 41.9",
        header=("offsets", "a sync each (low-high)", "one sync at the end (low-high)"),
    )
    path = site.folder / "small"
    _prepare(path, scale.small_file)
    arms = {
        f"{order} {each}": lambda order=order, each=each: 1 / _seconds(path, order, counts[each], sync_each=each)
        for order in ("sequential", "random")
        for each in (True, False)
    }
    result = interleave(arms, scale.rounds, "writes", warm_up=False)
    path.unlink()
    for order in ("sequential", "random"):
        finding.table.add_row(order, *(_of_a_thousand(result.rate(f"{order} {each}")) for each in (True, False)))
    for each, what in ((True, "a sync each"), (False, "one sync at the end")):
        few, many = _LOCAL[each]
        finding.beside(
            f"table 5.1 random over sequential offsets, time, {what} (thesis at 10^8: {many:,.0f})",
            result.ratio(f"sequential {each}", f"random {each}"),
            few,
            "x",
            more="pages of the whole file are written back, each for one write, instead of a few full ones",
            less="this disk has no head that moves, and a sync costs the same wherever the page is",
        )
    finding.remarks.append(f"table 5.1 on NFS is not measured: {why_no_nfs()}")
    return finding


def why_no_nfs() -> str:
    """Why what the thesis measured on NFS is measured on a local disk."""
    if "\tnfs" in Path("/proc/filesystems").read_text():
        return "mount one, and name a folder there with --folder"
    return "the kernel of this machine cannot mount NFS"


def _prepare(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        for _ in range(max(size // len(_CHUNK), 1)):
            file.write(_CHUNK)
        file.flush()
        os.fsync(file.fileno())


def _seconds(path: Path, order: str, count: int, *, sync_each: bool) -> float:
    """Seconds a write."""
    places = path.stat().st_size // len(_WRITTEN)
    random = Random(0)  # noqa: S311
    chosen = [random.randrange(places) if order == "random" else number % places for number in range(count)]
    offsets = [place * len(_WRITTEN) for place in chosen]
    fd = os.open(path, os.O_WRONLY)
    try:
        started = time.perf_counter()
        for offset in offsets:
            os.pwrite(fd, _WRITTEN, offset)
            if sync_each:
                os.fdatasync(fd)
        os.fdatasync(fd)
        return (time.perf_counter() - started) / count
    finally:
        os.close(fd)


def _of_a_thousand(rate: Spread) -> str:
    return f"{1000 / rate.median:.6f} ({1000 / rate.high:.6f}-{1000 / rate.low:.6f})"
