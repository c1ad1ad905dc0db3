"""YCSB itself, 0.17.0 from Maven Central, on a Redis server: what our own benchmark is compared with.

    with YcsbCore() as ycsb:
        text = ycsb.run("load", server.port, {"recordcount": "1000"})

Needs `mvn` and a JDK. The records are strings under YCSB's own keys (`YcsbRedis.java`).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from importlib import resources
from typing import Self

from safekeeper.bench.ycsb.runner import Phase
from safekeeper.dev.jars import fetch_pom
from safekeeper.spark.build import find_tool


class YcsbCore:
    """YCSB's client with our class for Redis, compiled on entering."""

    def __enter__(self) -> Self:
        files = resources.files("safekeeper.bench.lab")
        jars = fetch_pom("ycsb-core", files.joinpath("ycsb-core-pom.xml").read_bytes())
        self._scratch = tempfile.TemporaryDirectory(prefix="safekeeper-ycsb-")
        self._class_path = f"{self._scratch.name}:{jars}/*"
        command = [find_tool("javac"), "-proc:none", "-cp", self._class_path, "-d", self._scratch.name]
        done = subprocess.run([*command, str(files / "YcsbRedis.java")], capture_output=True, text=True)
        if done.returncode:
            self._scratch.cleanup()
            raise SystemExit(f"the laboratory does not compile: {done.stderr[-2000:]}")
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def run(self, phase: Phase, port: int, properties: Mapping[str, str]) -> str:
        """What YCSB prints when it does *phase* of the workload that *properties* describe, on the Redis at *port*."""
        given = {"workload": "site.ycsb.workloads.CoreWorkload", "redis.port": str(port), **properties}
        words = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
        program = ["java", "-cp", self._class_path, "site.ycsb.Client", "-t" if phase == "run" else "-load"]
        done = subprocess.run([*program, "-db", "YcsbRedis", *words], capture_output=True, text=True)
        if done.returncode or "[OVERALL]" not in done.stdout:
            raise SystemExit(f"YCSB ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout
