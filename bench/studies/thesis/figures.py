"""The figures of the thesis: throughput, latency, rebuilding the index, and rates against the number of ids.

The thesis' file backends were on NFS with a filer behind it; here they are on a local disk, which is its figure 5.1.
In 4.5 to 4.7 states are saved through a SafeKeeper: by three processes if all the stores can be shared by them, else by
one.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from functools import partial

from safekeeper.backend import Scope
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Interleaved, Spread, interleave
from safekeeper.bench.studies.thesis.finding import Finding, ThesisScale, ThesisSite
from safekeeper.bench.studies.thesis.small_writes import why_no_nfs
from safekeeper.bench.ycsb.clients import Share, run_in_processes
from safekeeper.bench.ycsb.compare import Point, compare
from safekeeper.bench.ycsb.properties import YcsbSettings, load_file
from safekeeper.bench.ycsb.recover import Recovery, measure
from safekeeper.bench.ycsb.runner import RunResult
from safekeeper.bench.ycsb.stores import open_store
from safekeeper.url import Url

PROCESSES = 3
RATE = 400.0
"""Events a second in 4.5, at the most."""

KEEPER = {"driver": "async", "keeper.queue": "1000"}
"""As S4 had it: a thousand saves may wait in each queue."""

_KEPT = 0.9  # of a rate; the end of a short run takes a part of it


def throughput_and_latency(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.1 and 5.1: nine writes to one read of 1 KB, more and more threads."""
    settings = YcsbSettings.of(load_file("s4thesis") | {"operationcount": str(scale.operations)})
    urls = site.urls("4.1")
    found = compare(urls, settings, threads=scale.threads, rounds=scale.rounds)
    finding = Finding(
        "4.1, 5.1  throughput and latency, 90 % writes, 1 KB, 1,000 ids",
        "on NFS file to 700/s, log to 2,100/s at 20 ms; on a local disk file below 500/s, log to 700/s",
        header=("threads", "file, ops/s", "file, ms", "log, ops/s", "log, ms", "log/file (low-high)"),
    )
    for threads, file, log in zip(scale.threads, found.of(urls[0]), found.of(urls[1]), strict=True):
        rates = file.throughput.median, log.throughput.median
        finding.table.add_row(
            str(threads),
            f"{rates[0]:,.0f}",
            f"{file.mean.median / 1e6:.2f}",
            f"{rates[1]:,.0f}",
            f"{log.mean.median / 1e6:.2f}",
            str(_ratio(log, file)),
        )
    quicker = "this disk takes a sync in a tenth of a millisecond, and has no seeks"
    for name, url, thesis in (("file", urls[0], (700, 500)), ("log", urls[1], (2100, 700))):
        most = max((point.throughput for point in found.of(url)), key=lambda rate: rate.median)
        for figure, place, number in (("4.1", "on NFS", thesis[0]), ("5.1", "on a local disk", thesis[1])):
            finding.beside(f"{figure} {name}, the most, {place} in the thesis", most, number, "ops/s", more=quicker)
    finding.expect(
        f"4.1 log over file with {threads} threads",
        _ratio(log, file),
        3,
        more="writes that wait together share a sync, which the thesis' log does not let them",
        less="where a seek costs nothing, one of a file's two syncs is all that log saves",
    )
    finding.remarks.append(f"4.1 on NFS is not measured: {why_no_nfs()}")
    return finding


def _ratio(one: Point, other: Point) -> Spread:
    return Spread.of(a.throughput / b.throughput for a, b in zip(one.samples, other.samples, strict=True))


def index_rebuild(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.2: opening a log whose writer was killed, against the number of ids."""
    finding = Finding(
        f"4.2  opening a log after a kill, entries of some 70 bytes, {scale.rounds} rounds",
        "linear, below 250 ms at one million",
        header=("ids", "open, ms (low-high)", "memory, MB"),
    )
    found: dict[int, list[Recovery]] = {}
    for turn in range(scale.rounds):
        url = site.urls(f"4.2-{turn}")[1]
        for one in measure(url, scale.rebuilt_ids, value_size=54, end="kill", only_open=True):
            found.setdefault(one.ids, []).append(one)
        shutil.rmtree(Url.parse(url).path)
    for ids, all_rounds in found.items():
        memory = Spread.of(one.open_bytes / 1e6 for one in all_rounds)
        finding.table.add_row(f"{ids:,}", str(_open_ms(all_rounds)), f"{memory.median:.1f}")
    (fewer, few), (ids, many) = list(found.items())[-2:]
    milliseconds = _open_ms(many)
    finding.goals.append(Goal(f"4.2 {ids:,} ids below 250 ms: {milliseconds} ms", milliseconds.median < 250))
    finding.beside(
        f"4.2 {ids:,} ids beside {fewer:,}, if it is linear in their number",
        Spread.of(a.open_seconds / b.open_seconds for a, b in zip(many, few, strict=True)),
        ids / fewer,
        "x",
        less="what does not depend on the number, opening files, is most of it with few ids",
        more="the fewer fit into the caches of the processor",
    )
    return finding


def _open_ms(rounds: Sequence[Recovery]) -> Spread:
    return Spread.of(one.open_seconds * 1000 for one in rounds)


def word_count(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.5 and 4.6: one checkpoint an event, at a rate that every store keeps, then lazy reads.

    The thesis took 400/s because that was the most that file took. A store that is given more than it takes builds up a
    queue, and its latency then tells how long the run was, not how fast the store is. So the rate is found first, and
    if a store does not keep it all the same, there is no verdict.
    """
    figure = "4.6" if site.servers else "4.5"
    urls = [*site.urls(figure), *site.servers]
    processes = _processes(urls)
    for url in urls:
        _load(url, 1000)
    slowest = min(_most_without_drops(url, 1000, scale.seconds, processes) for url in urls)
    target = min(RATE, slowest / 2)
    given = {"operationcount": str(scale.events), "target": str(target), "keeper.overflow": "drop-oldest"}
    writing = YcsbSettings.of(load_file("wordcount") | KEEPER | given)
    reading = dataclasses.replace(
        writing,
        readproportion=1.0,
        updateproportion=0.0,
        target=0.0,
        operationcount=1000,
        requestdistribution="sequential",
    )
    not_kept: set[str] = set()

    def write(url: str) -> float:
        result = _run(Share(url, "run", writing), processes)
        if result.throughput < _KEPT * target or result.measurements.returns["UPDATE", "DROPPED"]:
            not_kept.add(url)
        return 1e9 / result.measurements.totals()["UPDATE"].mean

    def read(url: str) -> float:
        return 1e9 / Share(url, "run", reading).run().measurements.totals()["READ"].mean

    writes = interleave({url: partial(write, url) for url in urls}, scale.rounds, "writes", warm_up=False)
    reads = interleave({url: partial(read, url) for url in urls}, scale.rounds, "reads", warm_up=False)
    finding = Finding(
        f"{figure}  {scale.events:,} word count events at {target:.0f}/s, then 1,000 lazy reads, {scale.rounds} rounds",
        "at 400/s log writes 4.85 x and reads 3 x as fast as file; Redis' writes slightly faster than HBase's, HBase's "
        "writes faster than its reads, both far below the file backends",
        header=("store", "processes", "write, ms (low-high)", "read, ms (low-high)", "kept the rate"),
    )
    for url in urls:
        times = (_milliseconds(result.rate(url)) for result in (writes, reads))
        finding.table.add_row(url.partition(":")[0], str(processes), *times, "no" if url in not_kept else "yes")
    (_compare_servers if site.servers else _compare_local)(finding, urls, writes, reads, not_kept)
    finding.remarks += site.missing
    return finding


def _compare_local(
    finding: Finding, urls: Sequence[str], writes: Interleaved, reads: Interleaved, not_kept: set[str]
) -> None:
    file, log = urls[:2]
    if not_kept & {file, log}:
        finding.remarks.append("4.5 no verdict on writes: a store did not keep the rate, so its latency is its queue's")
    else:
        finding.expect(
            "4.5 log's writes as fast as file's",
            writes.ratio(log, file),
            4.85,
            more="a file is two syncs, of itself and of its folder, each with the file system's journal",
            less="at this rate both wait for a sync or two, and a sync here costs a tenth of the thesis' or less",
        )
    finding.expect(
        "4.5 log's reads as fast as file's",
        reads.ratio(log, file),
        3,
        more="looking at an index costs less than opening a file",
        less="both come from this host's cache: no NFS is asked to look a file's name up, which is what log saved",
    )


def _compare_servers(
    finding: Finding, urls: Sequence[str], writes: Interleaved, reads: Interleaved, not_kept: set[str]
) -> None:
    stores = {url.partition(":")[0]: url for url in urls}
    local = "the servers are on this host: a request is no packet on a network"
    if not_kept:
        finding.remarks.append("4.6 no verdict on writes: a store did not keep the rate, so its latency is its queue's")
    elif {"redis", "hbase"} <= stores.keys():
        ratio = writes.ratio(stores["redis"], stores["hbase"])
        slower = "HBase's Thrift server, region server and log are three processes on two cores"
        finding.expect(
            "4.6 Redis' writes as fast as HBase's", ratio, 1, more=slower, less="Redis syncs every write here"
        )
    for name in {"redis", "hbase"} & stores.keys():
        for other in () if not_kept else ("file", "log"):
            finding.beside(
                f"4.6 {name}'s writes as fast as {other}'s (far below them: taken as a half)",
                writes.ratio(stores[name], stores[other]),
                0.5,
                "x",
                more=local,
                less=f"a save waits for {name}'s processes, and for its sync",
            )
    if "hbase" in stores and not not_kept:
        pairs = zip(writes.rates[stores["hbase"]], reads.rates[stores["hbase"]], strict=True)
        finding.expect(
            "4.6 HBase's writes as fast as its reads",
            Spread.of(write / read for write, read in pairs),
            1,
            more="a write goes to its log and memory",
            less="1,000 ids are in its memory, no read reaches a file, and writes pass through a keeper's queues",
        )


def throughput_against_ids(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.7: the most checkpoints a second without a drop, against the number of ids."""
    finding = Finding(
        f"4.7  checkpoints a second without drops, against the number of ids, {scale.rounds} rounds",
        "with three nodes file 400/s falling to 150/s at one million ids, log 1,300/s at any number",
        header=("ids", "processes", "file (low-high)", "log (low-high)"),
    )
    thesis = {"file": {scale.ids[0]: 400, 1_000_000: 150}, "log": dict.fromkeys(scale.ids, 1300)}
    quicker = "this disk syncs in a tenth of a millisecond, and a keeper writes all that is queued as one batch"
    for ids in scale.ids:
        urls = site.urls(f"4.7-{ids}")
        processes = _processes(urls)
        for url in urls:
            _load(url, ids)
        arms = {url: partial(_most_without_drops, url, ids, scale.seconds, processes) for url in urls}
        result = interleave(arms, scale.rounds, "rates", warm_up=False)
        finding.table.add_row(f"{ids:,}", str(processes), *(str(result.rate(url)) for url in urls))
        for name, url in zip(("file", "log"), urls, strict=True):
            if number := thesis[name].get(ids):
                finding.beside(f"4.7 {name} at {ids:,} ids", result.rate(url), number, "/s", more=quicker)
    wanted = 1300 / (150 if ids >= 1_000_000 else 400)
    finding.expect(
        f"4.7 log over file at {ids:,} ids",
        result.ratio(urls[1], urls[0]),
        wanted,
        more="log syncs a batch once, file once or more for each id of it",
        less="file does not pay a seek for each of its folders' blocks here",
    )
    finding.remarks.append("a keeper writes all that is queued as one batch: log syncs it once, file once for each id")
    return finding


def _load(url: str, ids: int) -> None:
    """Fill a store once: with a million files that takes longer than all that is measured."""
    Share(url, "load", dataclasses.replace(_rate_settings(ids, 0.0), maxexecutiontime=0.0)).run()


def _most_without_drops(url: str, ids: int, seconds: float, processes: int) -> float:
    """Checkpoints a second with a queue that makes the caller wait: the most that it takes without dropping any."""
    return _run(Share(url, "run", _rate_settings(ids, seconds)), processes).throughput


def _rate_settings(ids: int, seconds: float) -> YcsbSettings:
    properties = {"recordcount": str(ids), "target": "0", "operationcount": "0", "requestdistribution": "uniform"}
    properties |= {"maxexecutiontime": str(seconds), "keeper.overflow": "block"}
    return YcsbSettings.of(load_file("wordcount") | KEEPER | properties)


def _milliseconds(rate: Spread) -> str:
    return f"{1000 / rate.median:.2f} ({1000 / rate.high:.2f}-{1000 / rate.low:.2f})"


def _processes(urls: Sequence[str]) -> int:
    """From how many processes to measure stores that are compared: the same for all."""
    scopes = []
    for url in urls:
        with open_store(url) as store:
            scopes.append(store.scope)
    return PROCESSES if min(scopes) >= Scope.HOST else 1


def _run(share: Share, processes: int) -> RunResult:
    return run_in_processes(share, processes) if processes > 1 else share.run()
