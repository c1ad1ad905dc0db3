"""What holds for all tests."""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

import safekeeper.bench

if find_spec("safekeeper.bench.lab") is None:  # the wheel does not have the laboratory
    safekeeper.bench.__path__.append(str(Path(__file__).parents[1] / "bench"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or children that are told to end never would

WITH_SPARK = {"agent", "bench", "docs", "integrations", "spark"}


class TwoHalves(LoadScopeScheduling):
    """For two workers (`-n 2`): one has all that needs Spark, the other one the stores; no server is started twice."""

    def _split_scope(self, nodeid):
        return "spark" if nodeid.split("/")[1] in WITH_SPARK else "stores"


def pytest_xdist_make_scheduler(config, log):
    return TwoHalves(config, log)


def pytest_terminal_summary(terminalreporter):
    """Tells a slow machine from slow tests."""
    loads = "/".join(f"{load:.0f}" for load in os.getloadavg())
    terminalreporter.line(f"load of the machine in the last 1/5/15 minutes: {loads} on {os.cpu_count()} cores")


@pytest.fixture(autouse=True)
def _only_the_fixture_starts_spark(request):
    """A process has one JVM of Spark, for good: if that has not the bridge, the tests of the bridge cannot run."""
    had = _has_spark()
    yield
    if _has_spark() and not had and "spark" not in request.fixturenames:
        pytest.fail("this test has started Spark in the process of all tests: let it start one of its own")


def _has_spark():
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None
