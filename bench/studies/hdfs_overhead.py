"""What `hdfs:` costs on top of the raw Java client: the same writes through us and by hand.

    python -m safekeeper.bench.studies.hdfs_overhead [--quick] [--rounds 15] [--only records,values]

Small records, each synced to disk before the next, from one thread; and values of 64 MiB, on one replica and on three.
The peer is a few lines of Java (`HdfsRaw.java`) without Python in its loop: an open file, `write`, `hsync`; for a value
one file of one block, or the same chunk files as ours, written by as many threads; blocks are synced when they end, as
ours are. It keeps no index, no checksums and no order. A cluster of three DataNodes is started for it on loopback.

Also counted: the files and the calls to the NameNode for 1,000 small writes.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jpype

import safekeeper
from safekeeper.backend import Batch, CheckpointId
from safekeeper.backends.hdfs.client import Client, find_jars, start_jvm
from safekeeper.backends.hdfs.options import HdfsOptions, settings_of
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Interleaved, Measure, interleave, report
from safekeeper.bench.harness.laboratory import needs_laboratory
from safekeeper.dev.hdfs import HdfsCluster, HdfsNode
from safekeeper.dev.process import find_command
from safekeeper.url import Url

VALUE_BYTES = 64 << 20
RECORD_BYTES = 200
STORED_BYTES = 304
"""What a block with one such record is: the peer writes as many."""
MOST_BELOW = 0.15
_COUNTED_AFTER = 12.0
"""Seconds: the NameNode counts its calls anew every ten."""
_NOT_OF_CLIENTS = re.compile(
    r"Overall|Deferred|SendHeartbeat|BlockReceivedAndDeleted|BlockReport|RegisterDatanode|VersionRequest"
)


def compile_peer(folder: Path) -> None:
    """Compile the Java peer and let the JVM, which is started for it, find it."""
    with needs_laboratory(), resources.as_file(resources.files("safekeeper.bench.lab") / "HdfsRaw.java") as source:
        command = [find_command("javac"), "-cp", ":".join(find_jars()), "-d", str(folder), str(source)]
        subprocess.run(command, check=True)
    start_jvm()
    jpype.addClassPath(f"{folder}/")


def records_of_ours(store: safekeeper.Backend, seconds: float) -> Measure:
    """Synced small writes, one after the other, over 1,000 ids."""
    value = random.Random(0).randbytes(RECORD_BYTES)  # noqa: S311
    ids = [CheckpointId("bench", b"%03d" % number) for number in range(1000)]

    def run() -> float:
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            store.write(Batch({ids[count % 1000]: value}))
            count += 1
        return count / (time.perf_counter() - started)

    return run


def values_of_ours(store: safekeeper.Backend, value: bytes, count: int) -> Measure:
    """Large values, one after the other, each to an id of its own; they are removed afterwards."""
    ids = [CheckpointId("bench", b"large %d" % number) for number in range(count)]

    def run() -> float:
        started = time.perf_counter()
        for id in ids:
            store.write(Batch({id: value}))
        rate = count * len(value) / (time.perf_counter() - started)
        gone = Batch()
        for id in ids:
            gone.delete(id)
        store.write(gone)
        return rate / 1e6

    return run


def compare(cluster: HdfsCluster, replicas: int, given: argparse.Namespace) -> Iterator[tuple[Interleaved, Goal]]:
    """Both arms in turns, for records and for values."""
    # With our settings: by its own ones it would wait up to 0.4 s when it closes a file.
    client = Client(f"hdfs://{cluster.name_node.address}", settings_of(HdfsOptions()))
    raw: Any = jpype.JClass("HdfsRaw")(client._fs, replicas)
    chunk, threads = HdfsOptions().chunk, HdfsOptions().workers
    with safekeeper.open(f"{cluster.url}-{replicas}?replication={replicas}") as store:
        if "records" in given.only:
            nanoseconds = int(given.seconds * 1e9)
            arms: dict[str, Measure] = {
                "safekeeper": records_of_ours(store, given.seconds),
                "java": lambda: float(raw.records(f"/raw-{replicas}/records", STORED_BYTES, nanoseconds)),
            }
            title = f"records of {RECORD_BYTES} bytes, each synced, on {replicas} replica{'s' if replicas > 1 else ''}"
            yield judged(interleave(arms, given.rounds, title))
        if "values" in given.only:
            value = random.Random(0).randbytes(VALUE_BYTES)  # noqa: S311
            array = jpype.JArray(jpype.JByte)(value)
            folder = f"/raw-{replicas}/values"
            arms = {
                "safekeeper": values_of_ours(store, value, given.values),
                "java": lambda: raw.values(folder, given.values, array, VALUE_BYTES, 1) / 1e6,
                "java, chunks": lambda: raw.values(folder, given.values, array, chunk, threads) / 1e6,
            }
            title = f"values of 64 MiB on {replicas} replica{'s' if replicas > 1 else ''}"
            yield judged(interleave(arms, given.rounds, title, "MB/s"))
    raw.close()
    client.close()


def judged(result: Interleaved) -> tuple[Interleaved, Goal]:
    """The result, and whether we are at most so much below the best way to do it by hand."""
    best = max((arm for arm in result.rates if arm != "safekeeper"), key=lambda arm: result.rate(arm).median)
    ratio = result.ratio("safekeeper", best)
    text = f"hdfs, {result.title}: at most {MOST_BELOW:.0%} below the raw client ({best}): {ratio} times as fast"
    return result, Goal(text, ratio.median >= 1 - MOST_BELOW)


def count_calls(cluster: HdfsCluster, writes: int = 1000) -> str:
    """What so many small writes cost the NameNode, in a store that is opened, written and closed."""
    url = f"{cluster.url}-calls"
    before = _calls(cluster)
    with safekeeper.open(url) as store:
        for number in range(writes):
            store.write(Batch({CheckpointId("bench", b"%d" % number): bytes(RECORD_BYTES)}))
    after = _calls(cluster)
    client = Client(f"hdfs://{cluster.name_node.address}", {})
    files = len(client.listing(f"{Url.parse(url).path}/segments") or ())
    client.close()
    done = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    calls = ", ".join(f"{count} {name}" for name, count in sorted(done.items(), key=lambda pair: -pair[1]))
    return f"{writes} small writes, opening and closing included: {files} file, {sum(done.values())} calls ({calls})"


def _calls(cluster: HdfsCluster) -> dict[str, int]:
    time.sleep(_COUNTED_AFTER)
    port = cluster.name_node.address.rpartition(":")[2]
    facts = cluster.name_node.facts(f"RpcDetailedActivityForPort{port}")
    counts = {name.removesuffix("NumOps"): int(count) for name, count in facts.items() if name.endswith("NumOps")}
    return {name: count for name, count in counts.items() if not _NOT_OF_CLIENTS.match(name)}


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description="What hdfs: costs on top of the raw Java client.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a round of records takes")
    parser.add_argument("--values", type=int, default=1, help="how many values a round writes")
    parser.add_argument("--replicas", default="1,3")
    parser.add_argument("--only", default="records,values")
    parser.add_argument("--quick", action="store_true", help="one replica, for a look")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds, given.values, given.replicas = 3, 0.5, 1, "1"
    with tempfile.TemporaryDirectory() as scratch:
        compile_peer(Path(scratch))
        with HdfsCluster(Path(scratch, "hdfs"), [HdfsNode()] * 3) as cluster:
            for replicas in map(int, given.replicas.split(",")):
                for result, goal in compare(cluster, replicas, given):
                    report([result], "safekeeper")
                    print(goal, flush=True)
            print(count_calls(cluster))


if __name__ == "__main__":
    main()
