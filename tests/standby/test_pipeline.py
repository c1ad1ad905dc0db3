"""A chain of eight operators in four processes that sweeps its checkpoints: whoever is killed, the sink is right.

It runs plainly, with more outputs than fit into memory, and with a warm standby of each process.

The sink's bytes must be those of a run without a failure, which `bench/lab/pipeline.py` computes without any process.
"""

import os
import signal
import time
from itertools import islice
from random import Random
from typing import get_args

import pytest

from safekeeper.bench.lab.pipeline import PROCESSES, REPLACED, Form, OperatorChain, advance, expected, first

FORMS = get_args(Form)
LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
RUNS = {"plain": 200, "spilling": 200, "standbys": 200} if LONG else {"plain": 20, "spilling": 8, "standbys": 8}
RATE = 200
pytestmark = pytest.mark.timeout(0 if LONG else 900)  # whoever is stuck is found by the patience of the chain


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return request.param


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory, form):
    with OperatorChain(str(tmp_path_factory.mktemp("pipeline")), RATE, form=form) as pipeline:
        pipeline.wait_for(10)
        yield pipeline


def kill(pipeline, processes):
    for process in processes:
        os.kill(pipeline.running[process], signal.SIGKILL)
    for process in processes:
        pipeline.ended(pipeline.running[process])
        if pipeline.standbys:
            pipeline.running[process] = pipeline.standbys[process]  # it takes over by itself
            pipeline.stand_by(process)
        else:
            pipeline.start(process)


def test_what_the_sink_has_to_get_depends_on_every_element_and_its_order():
    right = list(islice(expected(), 30))
    assert [body.split(b" ")[0] for body in right] == [b"%d" % n for n in range(1, 31)]
    ends = []
    for order in ((1, 2, 3), (2, 1, 3)):
        state = []
        ends.append([advance(state, first(number)) for number in order][-1])
    assert ends[0] != ends[1]


def test_every_subset_of_the_processes_is_killed_and_the_sink_is_right(pipeline, form):
    for subset in range(1, 1 << PROCESSES) if LONG or form == "plain" else (0b0110, 0b1111):
        seen = pipeline.seen
        kill(pipeline, [process for process in range(PROCESSES) if subset >> process & 1])
        pipeline.wait_for(seen + RATE // 10)


def test_processes_are_killed_and_stopped_at_random_and_the_sink_is_right(pipeline, form):
    seed = Random().randrange(1 << 30)
    print("seed", seed)
    random = Random(seed)
    for _ in range(RUNS[form]):
        process = random.randrange(PROCESSES)
        time.sleep(random.random() * 0.1)
        if random.random() < 0.6:
            kill(pipeline, random.sample(range(PROCESSES), random.randint(1, 3)))
        else:
            replace_stopped(pipeline, process, random.random() * 0.2)
    pipeline.finish()
    assert pipeline.seen == pipeline.sent
    if form == "spilling":
        assert pipeline.counted().spilled > 0


def replace_stopped(pipeline, process, seconds):
    """Stop a process, start another in its place, and let the first one go on: it has to notice.

    It is at work when it is stopped: one that owns nothing yet may take over when it goes on, as a third one would."""
    pipeline.wait_for(pipeline.sent + 1)
    if pipeline.standbys:
        stop_for_longer_than_the_lease(pipeline, process)
        return
    stopped = pipeline.running[process]
    os.kill(stopped, signal.SIGSTOP)
    pipeline.start(process)
    time.sleep(seconds)
    os.kill(stopped, signal.SIGCONT)
    assert pipeline.ended(stopped) == REPLACED


def stop_for_longer_than_the_lease(pipeline, process):
    """Stop whoever was started first, until its standby has gone on. It has to notice, and end; if it was the standby
    itself by now, since the machine was too busy, it goes on."""
    stopped = pipeline.running[process]
    os.kill(stopped, signal.SIGSTOP)
    pipeline.wait_for(pipeline.sent + 1)
    os.kill(stopped, signal.SIGCONT)
    pipeline.wait_for(pipeline.sent + 1)
