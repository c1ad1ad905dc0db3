"""Starts the parts of some pipelines, kills them, and starts them again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from safekeeper.spark.build import spark_home
from safekeeper.testing.processes import AGENT, descendants

EXECUTOR = b"CoarseGrainedExecutorBackend"
_OF_SPARK = ("driver", "executor", "agent")
DEEDS = ("tidy", "total", *_OF_SPARK)
"""Who can be killed."""
_PATIENCE = 300.0
"""Seconds to wait for somebody to be at work: a driver has to start Spark first."""


@dataclass(frozen=True, slots=True)
class PipelineUrls:
    """The streams of one pipeline, and the checkpoint of its query."""

    lines: str
    words: str
    counts: str
    totals: str
    checkpoint: str

    @classmethod
    def of(cls, broker: str, folder: Path, number: int) -> PipelineUrls:
        """Streams between operators and Spark on Redis, from Spark to the last operator in a store."""
        on_redis = (f"{broker}?stream={name}-{number}" for name in ("lines", "words", "totals"))
        lines, words, totals = on_redis
        counts = f"store:log://{folder}/counts?stream=counts-{number}"
        return cls(lines, words, counts, totals, str(folder / f"checkpoint-{number}"))

    def planned(self) -> int:
        """Up to which word Spark has planned a batch, by its log; 0 if none."""
        newest = 0
        for file in Path(self.checkpoint, "offsets").glob("[0-9]*"):
            with suppress(ValueError, KeyError, IndexError, OSError):  # it is being written
                newest = max(newest, json.loads(file.read_text().splitlines()[2])["number"])
        return newest


class PipelineParts:
    """The processes of some pipelines: two for the operators, and the Spark driver with what belongs to it."""

    def __init__(self, folder: Path, master: str, pipelines: list[PipelineUrls]) -> None:
        self._folder, self._master, self._pipelines = folder, master, pipelines
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._jvm = 0
        self._application = ""
        self.batches = 0
        """How many batches the Spark driver has done since it was started."""
        self.starts: Counter[str] = Counter()
        """How often each was started."""

    def __enter__(self) -> Self:
        for name in ("driver", "tidy", "total"):
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._processes:
            self._kill(name)

    def _start(self, name: str) -> None:
        module, *words = self._command(name)
        surroundings = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"safekeeper.spark.pipeline.{module}", *words],
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if name == "driver" else log,
                stderr=log,
                text=True,
            )
        self.starts[name] += 1
        if name == "driver":
            self._jvm, self.batches = 0, 0
            threading.Thread(target=self._listen, args=(self._processes[name],), daemon=True).start()

    def _command(self, name: str) -> list[str]:
        each = self._pipelines
        if name == "driver":
            streams = [word for one in each for word in (one.words, one.counts, one.checkpoint)]
            return ["number", self._master, f"log://{self._folder}/state", *streams]
        pairs = [(one.lines, one.words) if name == "tidy" else (one.counts, one.totals) for one in each]
        return ["operators", name, f"log://{self._folder}/{name}", *(word for pair in pairs for word in pair)]

    def _listen(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stdout is not None
        for line in driver.stdout:
            told: dict[str, Any] = json.loads(line)
            if driver is self._processes["driver"]:
                self._jvm = told.get("jvm", self._jvm)
                self._application = told.get("application", self._application)
                self.batches += "batch" in told
        driver.stdout.close()

    def strike(self, who: str, chance: Random) -> bool:
        """Kill one; whether there was one at work. What nobody else starts again is started again here."""
        if who in _OF_SPARK and not self.batches:
            return False
        if who in self._processes:
            self._kill(who)
            self._start(who)
            return True
        found = descendants([self._jvm], EXECUTOR if who == "executor" else AGENT)
        if found:
            _send(chance.choice(found))
        return bool(found)

    def see_to_it(self) -> None:
        """Start again what has ended by itself, as systemd would."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._kill(name)
                self._start(name)

    def _kill(self, name: str) -> None:
        if name == "driver" and self._jvm:
            _send(self._jvm)
        process = self._processes[name]
        process.kill()
        process.wait()
        if name == "driver" and self._application:  # where `local-cluster` has its executors' files
            shutil.rmtree(spark_home() / "work" / self._application, ignore_errors=True)

    def said(self) -> str:
        """The end of what each of them has written."""
        logs = ((name, self._folder / f"{name}.log") for name in self._processes)
        return "\n".join(f"{name}: {log.read_text()[-3000:]}" for name, log in logs)


def harm(parts: PipelineParts, seed: int, deeds: int) -> Counter[str]:
    """Kill so many times at random, and say who. Each kind comes, if there are enough of them."""
    chance = Random(seed)  # noqa: S311 - it has to be repeatable
    plan = [DEEDS[index % len(DEEDS)] for index in range(deeds)]
    chance.shuffle(plan)
    done: Counter[str] = Counter()
    began = time.monotonic()
    for who in plan:
        time.sleep(chance.uniform(0.1, 1.5))
        give_up = time.monotonic() + _PATIENCE
        while not parts.strike(who, chance):
            if time.monotonic() > give_up:
                raise TimeoutError(f"seed {seed}: there is no {who} at work: {parts.said()}")
            parts.see_to_it()
            time.sleep(0.1)
        done[who] += 1
        print(
            f"{time.monotonic() - began:5.1f} s: killed {who}, this Spark has done {parts.batches} batches", flush=True
        )
    return done


def _send(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
