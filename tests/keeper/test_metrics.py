from __future__ import annotations

import importlib

import pytest

from safekeeper import CheckpointId, Histogram, Receipt, SafeKeeper
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper.metrics import CONTENT_TYPE, Metrics


def test_a_histogram_knows_count_mean_and_quantiles():
    histogram = Histogram()
    assert (histogram.count, histogram.mean, histogram.quantile(0.5)) == (0, 0.0, 0.0)
    for microseconds in range(1, 1001):
        histogram.record(microseconds / 1e6)
    assert histogram.count == 1000
    assert histogram.mean == pytest.approx(500.5e-6)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = share * 1000 / 1e6
        assert exact <= histogram.quantile(share) <= 2.1 * exact


@pytest.mark.parametrize("seconds", (0.0, 1e-9, 1e-6, 0.5, 60.0, 1e6), ids=str)
def test_any_duration_has_a_bucket(seconds):
    histogram = Histogram()
    histogram.record(seconds)
    assert histogram.count == 1


class Synced(MemoryBackend):
    def write(self, batch):
        super().write(batch)
        return Receipt(self.survives, sync_seconds=0.25)


def test_a_keeper_measures_every_step():
    with SafeKeeper(Synced(), overflow="block") as keeper:
        for n in range(10):
            keeper.save(CheckpointId("group", b"small"), n)
            keeper.save(CheckpointId("group", b"large"), "x" * 10_000)
        keeper.flush()
        keeper.fetch(CheckpointId("group", b"small"))
        m = keeper.metrics()
    assert (m.saves, m.stored, m.pending, m.fetches) == (20, 20, 0, 1)
    assert m.bytes_written > 100_000
    assert m.serialize.count == m.storage_wait.count == 20
    assert m.serialization_wait.count == 10
    assert m.store.count == m.sync.count == m.batches >= 10
    assert m.sync.mean == 0.25
    assert m.fetch.count == 1


def test_a_snapshot_stays_as_it_is(store):
    with SafeKeeper(store) as keeper:
        before = keeper.metrics()
        keeper.save(CheckpointId("group", b"a"), 1).result()
        assert (before.saves, before.store.count) == (0, 0)
        assert keeper.metrics().saves == 1


def test_prometheus_reads_the_exposition():
    parser = importlib.import_module("prometheus_client.parser")
    with SafeKeeper("memory:") as keeper:
        for n in range(100):
            keeper.save(CheckpointId("group", b"%d" % n), n)
        keeper.flush()
        metrics = keeper.metrics()
    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(metrics.prometheus(keeper='a "b"\\\n', zone="1"))
    }
    (saves,) = families["safekeeper_saves"].samples
    assert (saves.name, saves.value) == ("safekeeper_saves_total", 100)
    assert saves.labels == {"keeper": 'a "b"\\\n', "zone": "1"}
    assert families["safekeeper_pending"].type == "gauge"
    store = families["safekeeper_store_seconds"]
    assert store.type == "histogram"
    buckets = [sample.value for sample in store.samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == metrics.store.count
    assert {s.name: s.value for s in store.samples}["safekeeper_store_seconds_sum"] == metrics.store.total
    assert len(families) == len(Metrics.__slots__)
    assert CONTENT_TYPE.startswith("text/plain")
