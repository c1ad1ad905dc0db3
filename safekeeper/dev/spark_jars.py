"""The jars of other releases of Spark than the installed one, fetched once into the user's cache folder.

Maven has the releases of most minor versions, and Spark's own jars are all that is taken from there; pip has all
releases, whole and large.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from zlib import crc32

from safekeeper.dev.binaries import cache_folder
from safekeeper.dev.jars import copy_dependencies
from safekeeper.dev.process import DevError
from safekeeper.spark.build import FIRST, SUPPORTED

_OWN = ("catalyst", "common-utils", "common-utils-java", "core", "sql", "sql-api", "tags", "unsafe")
USED = (
    "arrow-memory-core-",
    "hadoop-client-api-",
    "jackson-",
    "jsr305-",  # annotations of Spark's classes: without it they are warnings
    "kryo-",
    "lz4-java-",
    "scala-library-",
    "slf4j-api-",
    "spark-",
    "zstd-jni-",
)
"""How the names of the jars begin that the bridge is compiled against."""

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>safekeeper</groupId>
  <artifactId>spark-jars</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = """\
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-{name}_2.13</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""


def releases() -> dict[str, list[str]]:
    """The releases of each supported minor version of Spark that pip knows, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "pyspark", "--disable-pip-version-check"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if listed is None:
        raise DevError(f"pip does not say which releases of PySpark there are: {' '.join(done.stderr.split())[:500]}")
    numbers = sorted(tuple(map(int, one.split("."))) for one in re.findall(r"\b\d+\.\d+\.\d+\b(?!\w)", listed[1]))
    found: dict[str, list[str]] = {minor: [] for minor in SUPPORTED}
    for number in numbers:
        if number >= FIRST and f"{number[0]}.{number[1]}" in found:
            found[f"{number[0]}.{number[1]}"].append(".".join(map(str, number)))
    return found


def from_maven(version: str) -> list[Path]:
    """Spark's own jars of a release. Raise `DevError` if Maven does not have it."""
    names = [name for name in _OWN if name != "common-utils-java" or not version.startswith("4.0.")]
    dependencies = "\n".join(_DEPENDENCY.format(name=name, version=version) for name in names)
    pom = _POM.format(dependencies=dependencies).encode()
    return _cached(f"spark-{version}-own", lambda folder: copy_dependencies(pom, folder))


def from_pip(version: str) -> list[Path]:
    """The jars of a release that the bridge is compiled against, Spark's own and others. It takes some minutes."""

    def install(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", scratch]
            done = subprocess.run(
                [*command, f"pyspark=={version}"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise DevError(f"pip could not install PySpark {version}: {' '.join(done.stderr.split())[:500]}")
            folder.mkdir()
            for jar in Path(scratch, "pyspark", "jars").glob("*.jar"):
                if jar.name.startswith(USED):
                    jar.rename(folder / jar.name)

    return _cached(f"spark-{version}-{crc32(repr(USED).encode()):08x}", install)


def as_home(jars: Iterable[Path], folder: Path) -> Path:
    """Make *folder* look like an installed Spark with these jars, for the compiler."""
    (folder / "jars").mkdir(parents=True)
    for jar in jars:
        (folder / "jars" / jar.name).symlink_to(jar)
    return folder


def with_others_of(own: Iterable[Path], home: Iterable[Path]) -> list[Path]:
    """Spark's *own* jars of one release and all that are not Spark's of *home*, the jars of another one."""
    return [*own, *(jar for jar in home if not jar.name.startswith("spark-"))]


def _cached(name: str, fetch: Callable[[Path], None]) -> list[Path]:
    folder = cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                fetch(Path(scratch, "jars"))
                os.rename(Path(scratch, "jars"), folder)
    return sorted(folder.glob("*.jar"))
