"""The story: lines go in, operators and Spark make totals of them, each of them is killed at random, all are exact.

    python -m safekeeper.spark.pipeline [--runs 1] [--lines 1000] [--kills 10] [--seed N] [--master MASTER]

It starts a Redis server of its own. Several runs go on side by side, in the same processes: each has its own streams,
operators and query, and whoever is killed is killed in all of them. They are fed until the kills are done, and *lines*
at least. Everything is below a temporary folder that is named, and left to look at if something is wrong.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

from safekeeper.dev.redis import RedisServer
from safekeeper.spark.pipeline.number import BATCH
from safekeeper.spark.pipeline.parts import PipelineParts, PipelineUrls, harm
from safekeeper.spark.pipeline.truth import Totals, arranged, expected, line
from safekeeper.streams import Position, StreamElement, StreamStatus, SupportsSurvey, open_inlet, open_outlet
from safekeeper.streams.registry import carrier_of

_PATIENCE = 300.0
_ROOM = 3 * BATCH
"""How many words may wait for Spark before feeding stops: so it has work all the time, and little when all is over."""


class PipelineRuns:
    """Some pipelines side by side, in *folder*: fed, killed and compared."""

    def __init__(self, folder: Path, broker: str, runs: int, seed: int, master: str) -> None:
        self.pipelines = [PipelineUrls.of(broker, folder, number) for number in range(runs)]
        self._folder, self._seed, self._master = folder, seed, master
        self.lines = [0] * runs
        """How many lines each was fed."""
        self.most_held = 0
        """How many elements that Spark had planned the first stream held at most, of those that were looked at."""
        self._harmed = threading.Event()
        self._failed: BaseException | None = None

    def run(self, kills: int, least: int) -> Counter[str]:
        """Feed each until the kills are done, and *least* lines; wait until all has come out. Say who was killed."""
        with PipelineParts(self._folder, self._master, self.pipelines) as parts:
            feeder = threading.Thread(target=self._feed, args=(least,))
            feeder.start()
            try:
                done = harm(parts, self._seed, kills)
            finally:
                self._harmed.set()
                feeder.join()
            if self._failed:
                raise self._failed
            self._wait(parts)
        return done

    def _feed(self, least: int) -> None:
        """Send lines while there is harm to be done, as fast as Spark takes them."""
        try:
            with ExitStack() as stack:
                outlets = [
                    stack.enter_context(closing(open_outlet(one.lines, readers=["tidy"]))) for one in self.pipelines
                ]
                while not self._harmed.is_set() or min(self.lines) < least:
                    for number, outlet in enumerate(outlets):
                        if self._look(self.pipelines[number]) < _ROOM:
                            first = self.lines[number] + 1
                            some = range(first, first + BATCH // 5)
                            outlet.send([StreamElement(at, line(self._seed + number, at)) for at in some])
                            self.lines[number] = some[-1]
                    time.sleep(0.1)
        except BaseException as error:
            self._failed = error

    def _look(self, one: PipelineUrls) -> int:
        """How many words wait for Spark. Note how many of those that it has planned the stream still holds for it."""
        planned = one.planned()
        words = _survey(one.words)
        self.most_held = max(self.most_held, planned - _number(words.readers.get("spark")))
        return _number(words.last) - planned

    def _wait(self, parts: PipelineParts) -> None:
        """Until everything has come out, and what the first stream retains is no more than two batches."""
        wanted = [sum(map(len, truth.values())) for truth in self.truths()]
        give_up = time.monotonic() + _PATIENCE
        while any(
            _number(_survey(one.totals).last) < count or _retained(one.words) > 2 * BATCH
            for one, count in zip(self.pipelines, wanted, strict=True)
        ):
            if time.monotonic() > give_up:
                raise TimeoutError(f"seed {self._seed}: it does not get done: {parts.said()}")
            parts.see_to_it()
            for one in self.pipelines:
                self._look(one)
            time.sleep(0.1)

    def truths(self) -> list[Totals]:
        """What must come out of each."""
        return [expected(self._seed + number, lines) for number, lines in enumerate(self.lines)]

    def found(self) -> list[Totals]:
        """What has come out of each."""
        return [arranged(_all(one.totals)) for one in self.pipelines]


def _survey(url: str) -> StreamStatus:
    carrier = carrier_of(url)
    assert isinstance(carrier, SupportsSurvey)
    (status,) = carrier.survey(url)
    return status


def _number(position: Position | None) -> int:
    assert position is None or isinstance(position, int)
    return position or 0


def _retained(url: str) -> int:
    status = _survey(url)
    return 0 if status.first is None else _number(status.last) - _number(status.first) + 1


def _all(url: str) -> list[StreamElement]:
    found: list[StreamElement] = []
    with closing(open_inlet(url)) as inlet:
        while some := inlet.read(timeout=0):
            found += some
    return found


def main() -> None:
    """Run it; exit code 1 if something is lost or came twice."""
    parser = argparse.ArgumentParser(prog="python -m safekeeper.spark.pipeline", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--master", default="local-cluster[2,1,512]")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="safekeeper-pipeline-"))
    print(f"seed {given.seed}, in {folder}", flush=True)
    began = time.monotonic()
    with RedisServer(folder / "redis", appendonly="yes", appendfsync="always") as redis:
        runs = PipelineRuns(folder, redis.url, given.runs, given.seed, given.master)
        done = runs.run(given.kills, given.lines)
        wrong = [
            number for number, pair in enumerate(zip(runs.found(), runs.truths(), strict=True)) if pair[0] != pair[1]
        ]
    killed = ", ".join(f"{who} {count} times" for who, count in sorted(done.items()))
    lines = sum(runs.lines)
    print(f"{given.runs} runs with {lines} lines in {time.monotonic() - began:.0f} s; killed: {killed or 'nobody'}")
    print(f"the words held {runs.most_held / BATCH:.1f} batches at most of what Spark had planned")
    if wrong:
        print(f"WRONG: {', '.join(map(str, wrong))}; look at {folder}")
        sys.exit(1)
    print("exact: each element of the last stream is there, once and in order")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
