"""An operator, a query of Spark with state, and an operator: all of them killed at random, the last stream exact.

Everyday one pipeline sees five kills, one of each kind. The long form is fifty runs, five side by side in the same
processes, since starting Spark takes most of the time: whoever is killed is killed in five of them at once, wherever
each of them is then.
"""

from __future__ import annotations

import os

import pytest

from safekeeper.dev.redis import RedisServer
from safekeeper.spark.pipeline.__main__ import PipelineRuns
from safekeeper.spark.pipeline.number import BATCH
from safekeeper.spark.pipeline.parts import DEEDS
from safekeeper.spark.pipeline.truth import arranged, expected
from safekeeper.streams import StreamElement

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
RUNS, KILLS, MASTER = (5, 7, "local-cluster[2,1,512]") if LONG else (1, 5, "local-cluster[1,2,512]")


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10 if LONG else 1))
def test_the_last_stream_is_that_of_a_run_without_a_failure(environment, tmp_path, seed):
    with RedisServer(tmp_path / "redis", appendonly="yes", appendfsync="always") as redis:
        runs = PipelineRuns(tmp_path, redis.url, RUNS, seed, MASTER)
        killed = runs.run(KILLS, 300)
        assert runs.found() == runs.truths()
    print(f"killed {dict(killed)}, {sum(runs.lines)} lines, held {runs.most_held / BATCH} batches")
    assert min(killed[who] for who in DEEDS) > 0
    assert 0 < runs.most_held <= 2 * BATCH


def test_the_comparison_sees_what_is_lost_or_doubled():
    truth = expected(7, 100)
    elements = [StreamElement(0, body, word) for word, bodies in truth.items() for body in bodies]
    assert arranged(elements) == truth
    assert arranged(elements[1:]) != truth
    assert arranged([*elements, elements[-1]]) != truth
    assert arranged([elements[1], elements[0], *elements[2:]]) != truth
