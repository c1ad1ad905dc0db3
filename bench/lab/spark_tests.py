"""Spark's own tests and benchmarks, as Maven Central has them, with our provider in them.

    with SparkTests("4.2.0") as tests:
        tests.compile(generated)
        tests.run("org.scalatest.tools.Runner", "-s", "io.safekeeper.spark.SparkBaseSuite")

Each version runs on its own Spark, from Maven Central too: the tests of one minor do not link with another. What stands
between them and our provider is `java/`. Needs `mvn` and a JDK.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Self

from safekeeper.dev.jars import fetch_pom
from safekeeper.spark.build import build, find_tool, source_folders

VERSIONS = ("4.0.4", "4.1.3", "4.2.0")
"""The newest of each minor whose tests are on Maven Central."""

_OPEN = (
    *("java.io", "java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
    "sun.util.calendar",
)
"""What Spark opens for itself where it is started by its scripts."""

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n
"""

_CONSTANT_BYTES = {
    3: 4,
    4: 4,
    5: 8,
    6: 8,
    7: 2,
    8: 2,
    9: 4,
    10: 4,
    11: 4,
    12: 4,
    15: 3,
    16: 2,
    17: 4,
    18: 4,
    19: 2,
    20: 2,
}
_TEXT, _LONG, _DOUBLE = 1, 5, 6


class SparkTests:
    """The tests of Spark *version* and the bridge for it, in a folder that is removed on leaving."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._scratch = tempfile.TemporaryDirectory(prefix="safekeeper-spark-tests-", ignore_cleanup_errors=True)
        self.folder = Path(self._scratch.name)
        self._classes = self.folder / "classes"
        self._bridge = self.folder / "bridge.jar"

    def __enter__(self) -> Self:
        pom = resources.files("safekeeper.bench.lab").joinpath("spark-tests-pom.xml").read_text()
        jars = fetch_pom(f"spark-tests-{self.version}", pom.replace("SPARK_VERSION", self.version).encode())
        (self.folder / "jars").symlink_to(jars)
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        build(source_folders(self.version.rpartition(".")[0]), self.folder, self._bridge)
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    @property
    def class_path(self) -> str:
        """Our classes, the bridge, Spark and its tests."""
        return f"{self._classes}:{self._bridge}:{self.folder}/jars/*"

    def compile(self, names: list[str], generated: Mapping[str, str] | None = None) -> None:
        """Compile the named classes of the laboratory, and those whose source is *generated*."""
        ours = resources.files("safekeeper.bench.lab") / "java" / "io" / "safekeeper" / "spark"
        sources = [str(ours / f"{name}.java") for name in names]
        for name, text in (generated or {}).items():
            (self.folder / f"{name}.java").write_text(text)
            sources.append(f"{self.folder}/{name}.java")
        command = [find_tool("javac"), "--release", "17", "-proc:none", "-nowarn", "-cp", self.class_path]
        done = subprocess.run([*command, "-d", str(self._classes), *sources], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the laboratory does not compile for Spark {self.version}: {done.stderr[-2000:]}")

    def rename(self, name: str, names: Mapping[str, str]) -> None:
        """Let the class *name* of Spark's tests, `org/apache/spark/...`, use other classes than it was compiled
        for, and so all that is in it."""
        encoded = {old.encode(): new.encode() for old, new in names.items()}
        with zipfile.ZipFile(self.folder / "jars" / f"spark-sql_2.13-{self.version}-tests.jar") as jar:
            for file in jar.namelist():
                if file == f"{name}.class" or (file.startswith(f"{name}$") and file.endswith(".class")):
                    target = self._classes / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(renamed(jar.read(file), encoded))

    def run(self, main: str, *arguments: str, out: IO[str], **properties: str) -> int:
        """Run a class in a JVM of its own; what it prints goes to *out*. The state of our providers is in a `log:`."""
        work = Path(tempfile.mkdtemp(dir=self.folder))
        given = {
            "java.io.tmpdir": str(work),
            "log4j2.configurationFile": str(self.folder / "log4j2.properties"),
            "safekeeper.python": sys.executable,
            "safekeeper.url": f"log://{work}/store",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
        } | {name.replace("_", "."): value for name, value in properties.items()}
        command = [find_tool("java"), "-Xmx3g", *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN)]
        command += [*(f"-D{name}={value}" for name, value in given.items()), "-cp", self.class_path, main, *arguments]
        surroundings = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
        return subprocess.run(command, cwd=work, env=surroundings, stdout=out, stderr=subprocess.STDOUT).returncode


def renamed(data: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """A class file with other texts among its constants: where one is a key of *names*, or a type that is one."""
    types = {b"L%s;" % old: b"L%s;" % new for old, new in names.items()}
    (count,) = struct.unpack(">H", data[8:10])
    made, at, number = bytearray(data[:10]), 10, 1
    while number < count:
        tag = data[at]
        if tag == _TEXT:
            (length,) = struct.unpack(">H", data[at + 1 : at + 3])
            end = at + 3 + length
            text = data[at + 3 : end]
            text = names.get(text, text)
            for old, new in types.items():
                text = text.replace(old, new)
            made += struct.pack(">BH", tag, len(text)) + text
        else:
            end = at + 1 + _CONSTANT_BYTES[tag]
            made += data[at:end]
        at = end
        number += 2 if tag in (_LONG, _DOUBLE) else 1
    return bytes(made) + data[at:]
