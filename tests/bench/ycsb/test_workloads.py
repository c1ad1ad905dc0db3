"""The bundled workloads, run on `memory:` through the runner: their mixes and the records they go to."""

from collections import Counter

import numpy as np
import pytest

from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.ycsb.properties import YcsbSettings, load_file
from safekeeper.bench.ycsb.runner import Runner
from safekeeper.bench.ycsb.workload import Workload

OPERATIONS = 20_000

MIXES = {
    "workloada": {"READ": 0.5, "UPDATE": 0.5},
    "workloadb": {"READ": 0.95, "UPDATE": 0.05},
    "workloadc": {"READ": 1.0},
    "workloadd": {"READ": 0.95, "INSERT": 0.05},
    "workloade": {"SCAN": 0.95, "INSERT": 0.05},
    "workloadf": {"READ": 0.5, "READ-MODIFY-WRITE": 0.5},
    "s4thesis": {"READ": 0.1, "UPDATE": 0.9},
    "wordcount": {"UPDATE": 1.0},
}


class Watched(MemoryBackend):
    """Remembers what was asked of it."""

    def __init__(self):
        super().__init__()
        self.read_ids = []
        self.written = []

    def read(self, ids):
        self.read_ids.append(list(ids))
        return super().read(ids)

    def write(self, batch):
        self.written += [id for id, _ in batch.items()]
        return super().write(batch)


def settings_of(name, **more):
    given = {"operationcount": str(OPERATIONS), "seed": "14", "target": "0"}
    return YcsbSettings.of(
        load_file(name) | given | {name.replace("_", "."): str(value) for name, value in more.items()}
    )


def run(settings, backend):
    workload = Workload(settings)
    runner = Runner(workload, backend)
    runner.load()
    if isinstance(backend, Watched):
        backend.written.clear()
    return workload, runner.run()


@pytest.mark.parametrize("name", tuple(MIXES))
def test_the_mix_is_ycsbs(name):
    settings = settings_of(name)
    _, result = run(settings, MemoryBackend())
    counts = {name: latencies.count for name, latencies in result.measurements.totals().items()}
    if "READ-MODIFY-WRITE" in counts:  # the read and the update in it are counted, too
        both = counts["READ-MODIFY-WRITE"]
        assert counts.pop("UPDATE") == both
        counts["READ"] -= both
    assert counts.keys() == MIXES[name].keys()
    assert sum(counts.values()) == result.operations == OPERATIONS
    chi_square = sum((counts[op] - OPERATIONS * share) ** 2 / (OPERATIONS * share) for op, share in MIXES[name].items())
    assert chi_square < 20  # one degree of freedom: once in 100,000
    assert all(code == "OK" for _, code in result.measurements.returns)


def test_keys_are_the_ones_that_ycsb_makes():
    ids = Workload(settings_of("workloada")).ids
    assert [str(ids[number]) for number in (0, 1)] == [
        "usertable/user6284781860667377211",
        "usertable/user8517097267634966620",
    ]
    ordered = Workload(settings_of("workloada", insertorder="ordered", zeropadding=6)).ids
    assert ordered[12].key == b"user000012"


def test_reads_and_updates_go_to_the_same_popular_records():
    backend = Watched()
    workload, _ = run(settings_of("workloada"), backend)
    reads, writes = Counter(id for ids in backend.read_ids for id in ids), Counter(backend.written)
    # The most popular rank of the scrambled zipfian hashes to one record, whatever the seed.
    popular = workload.ids[6284781860667377211 % 1001]
    assert reads.most_common(1)[0][0] == writes.most_common(1)[0][0] == popular
    share = reads[popular] / sum(reads.values())
    assert share == pytest.approx(1 / 26.469, abs=0.01)


def test_workload_d_reads_what_was_just_inserted():
    backend = Watched()
    workload, result = run(settings_of("workloadd"), backend)
    inserted = result.measurements.totals()["INSERT"].count
    number_of = {workload.ids[n]: n for n in range(1000 + inserted)}
    newest = 1000 + inserted - 1
    numbers = np.array([number_of[id] for ids in backend.read_ids for id in ids])
    assert not set(backend.written) & {workload.ids[n] for n in range(1000)}
    assert len(backend.written) == inserted
    assert numbers.max() == newest
    assert (numbers[-2000:] > newest - 200).mean() > 0.6  # a zipfian rank below 200 of some 2000
    assert (numbers[:2000] < 1000 + inserted // 10 + 100).all()


def test_workload_e_scans_records_in_the_order_of_their_keys_up_to_the_longest_scan():
    backend = Watched()
    _, result = run(settings_of("workloade", operationcount=3000), backend)
    order = sorted(backend.keys("usertable"))
    scans = [[id.key for id in ids] for ids in backend.read_ids]
    assert {len(scan) for scan in scans} >= set(range(1, 101))
    assert max(map(len, scans)) == 100
    last = [order.index(key) for key in scans[-1]]
    assert last == list(range(last[0], last[0] + len(last)))
    assert all(scan == sorted(scan) for scan in scans)
    assert any("no ordered scan" in note for note in result.notes)


def test_a_read_modify_write_writes_the_record_that_it_read():
    backend = Watched()
    run(settings_of("workloadf", operationcount=500, readproportion=0), backend)
    assert backend.written == [id for ids in backend.read_ids for id in ids]


def test_threads_insert_every_record_once():
    backend = Watched()
    workload = Workload(settings_of("workloada", threadcount=4))
    result = Runner(workload, backend).load()
    assert result.operations == 1000
    assert Counter(backend.written) == Counter(workload.ids[n] for n in range(1000))


def test_a_part_of_the_records_can_be_loaded_by_somebody_else():
    backend = Watched()
    workload = Workload(settings_of("workloada", insertstart=100, insertcount=50, requestdistribution="uniform"))
    Runner(workload, backend).load()
    assert set(backend.written) == {workload.ids[n] for n in range(100, 150)}
    Runner(workload, backend).run()
    assert {id for ids in backend.read_ids for id in ids} == {workload.ids[n] for n in range(100, 150)}


@pytest.mark.parametrize("distribution", ("uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"))
def test_every_distribution_stays_on_records_that_are_there(distribution):
    settings = settings_of("workloadd", requestdistribution=distribution, recordcount=10, operationcount=2000)
    _, result = run(settings, MemoryBackend())
    assert {code for _, code in result.measurements.returns} == {"OK"}


def test_the_same_seed_gives_the_same_operations_and_another_one_others():
    def written(seed):
        backend = Watched()
        run(settings_of("workloada", seed=seed, operationcount=300), backend)
        return backend.written

    assert written(1) == written(1) != written(2)


def test_values_have_the_lengths_that_were_asked_for():
    for distribution, allowed in (("constant", {1000}), ("uniform", set(range(10, 1001)))):
        backend = MemoryBackend()
        workload, _ = run(settings_of("workloada", fieldlengthdistribution=distribution), backend)
        values = backend.read([workload.ids[n] for n in range(1000)])
        assert {len(value) for value in values} <= allowed
