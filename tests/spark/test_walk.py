"""The queries with which a release goes from one Spark to the next find what they must, here on one Spark."""

from __future__ import annotations

import os

import pytest

from safekeeper.dev import spark_query
from safekeeper.dev.spark_walk import CheckpointWalk, sessions

STATE = "spark.sql.streaming.stateStore."
STEPS = 4 if os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long" else 2


@pytest.mark.parametrize("provider", ("ours", "hdfs") if STEPS == 4 else ("ours",))
def test_every_step_of_a_walk_finds_what_it_must(spark, ours, hdfs, tmp_path, provider):
    session = spark.newSession()
    for name, value in (ours() if provider == "ours" else hdfs).items():
        session.conf.set(name, value)
    walk = CheckpointWalk(tmp_path)
    for _ in range(STEPS):
        expected = walk.step()
        assert all(expected.values())
        assert spark_query.run(session, tmp_path) == expected


def test_sessions_are_as_far_apart_as_they_must_be():
    assert sessions([("a", 0), ("b", 5), ("a", 40), ("a", 81)]) == [("a", 80, 2), ("a", 121, 1), ("b", 45, 1)]
