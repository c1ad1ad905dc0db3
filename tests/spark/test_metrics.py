"""What a query's progress and the Spark UI tell about the state."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from safekeeper.spark.build import spark_home, spark_version

MINOR = spark_version(spark_home())
STATE = "spark.sql.streaming.stateStore."


def sums(left):
    return left.groupBy("key").agg(F.sum("number"))


@pytest.fixture
def ran(ours, runner, events, unload):
    """A query after a restart with nothing in memory."""
    run = runner(sums, {"left": events(1, batches=4)}, ours(), "update")
    run.run(0, 1, 2)
    unload()
    run.run(3)
    return run


def test_progress_tells_where_the_time_of_a_commit_went_and_what_it_wrote(ran):
    (state,) = ran.progress[-1].stateOperators
    found = state.customMetrics
    split = found["safekeeperFrameMicros"] + found["safekeeperAgentMicros"] + found["safekeeperStoreMicros"]
    assert 0 < split <= 1000 * state.commitTimeMs + 2000 * state.numShufflePartitions  # Spark counts whole milliseconds
    assert found["safekeeperShippedBytes"] > 0
    assert found["safekeeperAppendedBytes"] > 0
    assert found["safekeeperCleanedBytes"] >= 0
    assert found["safekeeperExtentBytes"] >= found["safekeeperLiveBytes"] > 0
    assert found["safekeeperAgentRestarts"] == 0
    assert state.memoryUsedBytes > found["safekeeperLiveBytes"]


def test_progress_tells_what_a_restart_read(ran):
    first = ran.progress[0].stateOperators[0].customMetrics
    assert first["safekeeperCommitsRead"] > 0
    assert first["safekeeperLoadMicros"] > 0


def test_the_ui_shows_them_with_the_operator(spark, ran):
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    metrics = [executions.apply(at).metrics() for at in range(executions.size())]  # Spark 4.0 has two for a batch
    assert {
        "microseconds to build and compress commits",
        "microseconds that the backend took to make commits durable",
        "size of the commits as they were sent",
        "size of the changes that a restart would have to replay",
    } <= {metric.apply(at).name() for metric in metrics for at in range(metric.size())}


@pytest.mark.skipif(MINOR < "4.1", reason="Spark 4.0 does not look for it")
@pytest.mark.parametrize(("each", "told"), ((1, {1: 1, 2: 2}), (10, {1: 1, 2: 1})))
def test_spark_does_not_take_our_stores_for_behind_with_snapshots(each, told, spark, ours, runner, events):
    """It warns of those that are more than 50 versions behind: so what it was told, as a batch begins, shows there."""
    behind = {}

    def look(rows, batch):
        (query,) = sums_of.session.streams.active
        run = spark._jvm.java.util.UUID.fromString(query.runId)
        driver = sums_of.session._jsparkSession.streams().stateStoreCoordinator()
        behind[batch] = [driver.getLaggingStoresForTesting(run, newest, True).size() for newest in range(50, 54)]

    settings = {**ours(), STATE + "minDeltasForSnapshot": str(each)}
    sums_of = runner(sums, {"left": events(1, batches=3)}, settings, "update", look)
    sums_of.run(0, 1, 2)
    stores = int(spark.conf.get("spark.sql.shuffle.partitions"))
    for batch, version in told.items():
        assert behind[batch] == [stores if newest - version > 50 else 0 for newest in range(50, 54)]
