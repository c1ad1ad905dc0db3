"""What a query's progress and the Spark UI tell about the state."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

STATE = "spark.sql.streaming.stateStore."


def sums(left):
    return left.groupBy("key").agg(F.sum("number"))


@pytest.fixture
def ran(spark, ours, runner, events):
    """A query after a restart with nothing in memory."""
    run = runner(sums, {"left": events(1, batches=4)}, ours(), "update")
    run.run(0, 1, 2)
    spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
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
