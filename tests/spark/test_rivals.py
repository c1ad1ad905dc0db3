"""Two drivers on one checkpoint in a store: one wins each batch, the other fails with Spark's own error."""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Barrier

import pytest
from py4j.protocol import Py4JJavaError

import safekeeper
from safekeeper.dev.redis import RedisServer
from safekeeper.integrations.filesystem.volume import FileVolumes
from safekeeper.spark import CHECKPOINTS, FILES
from safekeeper.spark.build import spark_home, spark_version
from safekeeper.testing.proxy import Proxy

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
ROUNDS = 200 if LONG else 8
SPARKS_OWN = "org.apache.spark.sql.execution.streaming."
MOVED = "checkpointing." if spark_version(spark_home()) >= "4.1" else ""
CONCURRENT = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")


class Logs:
    """The offset log and the commit log of one driver, as a streaming query has them."""

    def __init__(self, spark, checkpoint, **settings):
        self._session = spark.newSession()
        own = {"impl": FILES, "python": sys.executable, "impl.disable.cache": "true", **settings}
        self._session.conf.set("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
        for name, value in own.items():
            self._session.conf.set(f"fs.safekeeper.{name}", value)
        self._jvm = spark._jvm
        self._offsets = self._make(f"{MOVED}OffsetSeqLog", self._session._jsparkSession, f"{checkpoint}/offsets", False)
        self._commits = self._make(f"{MOVED}CommitLog", self._session._jsparkSession, f"{checkpoint}/commits", False)

    def plan(self, batch, number):
        """Write the batch's offset; whether it is this one's."""
        offset = self._make(f"{'runtime.' if MOVED else ''}LongOffset", number)
        planned = self._find(f"{MOVED}OffsetSeq").fill(self._jvm.PythonUtils.toSeq([offset]))
        return self._add(self._offsets, batch, planned)

    def commit(self, batch, number):
        """Write the batch's commit; likewise."""
        nothing = self._jvm.scala.Option.empty()
        return self._add(self._commits, batch, self._make(f"{MOVED}CommitMetadata", number, nothing))

    def planned(self, batch):
        return str(self._offsets.get(batch).get())

    def committed(self, batch):
        return str(self._commits.get(batch).get().nextBatchWatermarkMs())

    def _find(self, name):
        found = self._jvm
        for part in (SPARKS_OWN + name).split("."):
            found = getattr(found, part)
        return found

    def _make(self, name, *arguments):
        """An object of Spark's; older ones take fewer arguments, or more."""
        (made, *_) = self._jvm.java.lang.Class.forName(SPARKS_OWN + name).getConstructors()
        return self._find(name)(*arguments[: made.getParameterCount()])

    def _add(self, log, batch, metadata):
        """Spark takes False for the same as the error: it is that the file was there when it looked before."""
        try:
            return log.add(batch, metadata)
        except Py4JJavaError as error:
            if any(text in str(error) for text in CONCURRENT):
                return False
            raise


@pytest.fixture
def two_urls(tmp_path, cutting):
    """What the two drivers are given: a store that both see, which loses answers on their way if it is to."""
    with ExitStack() as running:

        def two_urls(scheme, replies):
            if scheme == "log":
                python = cutting if replies == "cut" else sys.executable
                url = f"log://{tmp_path}/store"
                return url, [{"url": url, "python": python, "queueBytes": str(1 << size)} for size in (26, 27)], []
            server = running.enter_context(RedisServer(tmp_path / "redis", appendonly="yes", appendfsync="always"))
            proxies = [running.enter_context(closing(Proxy(server.port))) for _ in range(2)]
            return server.url, [{"url": proxy.url} for proxy in proxies], proxies

        yield two_urls


@pytest.mark.timeout(1800)
@pytest.mark.crash
@pytest.mark.parametrize(
    ("scheme", "replies"), [(scheme, replies) for scheme in ("log", "redis") for replies in ("whole", "cut")]
)
def test_of_two_drivers_one_plans_and_one_commits_each_batch(scheme, replies, spark, two_urls):
    """With `cut`, answers are lost on their way back: on `log:` an agent's, on `redis:` the server's."""
    checkpoint, chance = "safekeeper://main/query", random.Random(7)
    url, settings, proxies = two_urls(scheme, replies)
    drivers = [Logs(spark, checkpoint, **one) for one in settings]
    begin = Barrier(2)

    def drive(who):
        outcomes = []
        for batch in range(ROUNDS):
            begin.wait(120)
            if replies == "cut" and proxies and chance.random() < 0.7:
                proxies[who].lose_the_next_answer()
            outcomes.append((drivers[who].plan(batch, 10 * batch + who), drivers[who].commit(batch, 10 * batch + who)))
        return outcomes

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(drive, range(2)))
    reader = Logs(spark, checkpoint, url=url)
    for batch, (first, second) in enumerate(zip(*found, strict=True)):
        for kind, said in enumerate((reader.planned(batch), reader.committed(batch))):
            assert first[kind] + second[kind] == 1, f"batch {batch}: {first[kind]}, {second[kind]}"
            assert str(10 * batch + (0 if first[kind] else 1)) in said
    with safekeeper.open(url) as store:
        assert list(FileVolumes(store).damaged("main")) == []
