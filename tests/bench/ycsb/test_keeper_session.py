import pytest

from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.ycsb.exporters import rows
from safekeeper.bench.ycsb.keeper_session import keeper_sessions
from safekeeper.bench.ycsb.properties import YcsbSettings
from safekeeper.bench.ycsb.runner import Runner
from safekeeper.bench.ycsb.workload import Workload
from safekeeper.errors import Corruption


def run(backend, **properties):
    given = {"recordcount": 50, "operationcount": 2000, "fieldlength": 10, "seed": 14, "driver": "async"} | properties
    named = {name.replace("_", "."): str(value) for name, value in given.items()}
    runner = Runner(Workload(YcsbSettings.of(named)), backend, open_sessions=keeper_sessions)
    runner.load()
    result = runner.run()
    return {(row.metric, row.measurement): row.value for row in rows(result, YcsbSettings(percentiles=(50,)))}


def returns(found, name):
    return {m.removeprefix("Return="): n for (metric, m), n in found.items() if metric == name and "Return" in m}


@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("overflow", ("block", "reject", "drop-oldest", "coalesce"))
def test_every_save_is_counted_once_whatever_became_of_it(overflow, threads):
    found = run(
        MemoryBackend(),
        keeper_overflow=overflow,
        keeper_queue=3,
        threadcount=threads,
        readproportion=0.1,
        updateproportion=0.9,
    )
    updates, reads = returns(found, "UPDATE"), returns(found, "READ")
    assert sum(updates.values()) + sum(reads.values()) == 2000
    assert sum(updates.values()) == found["KEEPER", "Saves"]
    assert updates.get("OK", 0) == found["KEEPER", "Stored"] == found.get(("UPDATE", "Operations"), 0)
    assert updates.get("SUPERSEDED", 0) == found["KEEPER", "Superseded"]
    assert updates.get("DROPPED", 0) == found["KEEPER", "Dropped"] + found["KEEPER", "Rejected"]


def test_reads_give_back_what_was_saved_before():
    found = run(MemoryBackend(), dataintegrity="true", readproportion=0.5, updateproportion=0.5)
    assert set(returns(found, "VERIFY")) == {"OK"}
    assert set(returns(found, "READ")) == {"OK"}


def test_a_read_modify_write_ends_when_its_save_is_stored():
    found = run(
        MemoryBackend(), readproportion=0, updateproportion=0, readmodifywriteproportion=1, keeper_overflow="block"
    )
    assert found["READ-MODIFY-WRITE", "Operations"] == found["UPDATE", "Operations"] == 2000


def test_what_the_store_refuses_is_an_error_of_the_operation():
    class Damaged(MemoryBackend):
        def write(self, batch):
            if any(id.key.endswith(b"7") for id, _ in batch.items()):
                raise Corruption("bit rot")
            return super().write(batch)

    found = run(Damaged(), keeper_overflow="block", readproportion=0, updateproportion=1, operationcount=300)
    updates = returns(found, "UPDATE")
    assert updates["ERROR"] == found["KEEPER", "Failed"] == found["UPDATE-FAILED", "Operations"]
    assert sum(updates.values()) == 300
