"""Makes the jar with the JVM side of the bridge, for the Spark that is installed.

    PACKAGE/spark/jars/safekeeper-spark-4.3-DIGEST.jar      in a release, for all minor versions of Spark; in another
                                                            wheel, for the Spark that was there when it was built
    CACHE/safekeeper/safekeeper-spark-4.3-DIGEST.jar        built at first use otherwise; only its owner may change it

Spark's state store interface changes with every minor version and links with no other, so there is one jar for each:
from `java`, which they have in common, and those folders of `shim` that are for that minor.
The digest is that of the sources: a jar of another version of safekeeper is never used. CACHE is `$XDG_CACHE_HOME`,
else `~/.cache`.

Only the standard library is imported, since `wheel.py` loads this file by its path, where nothing is installed yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SUPPORTED = ("4.0", "4.1", "4.2", "4.3")
"""The minor versions of Spark that the sources are written for."""

FIRST = (4, 0, 5)
"""The oldest release that is supported: those before it lack what later ones of 4.0 have."""

SOURCES = Path(__file__).parent / "java"
"""What all of them have in common."""

SHIMS = Path(__file__).parent / "shim"
"""All that differs: a folder for one minor version (`4.0`), for all up to one (`until-4.1`), from one on (`since-4.1`).
Each minor version gets one class of each name."""

SHIPPED = Path(__file__).parent / "jars"

STRICT = ("-Xlint:all,-path", "-Werror")
"""Compiler options for wheels and tests. At first use a warning is no reason to fail: a later JDK knows new ones. The
jars of Spark name others that it does not ship (`path`)."""

_EPOCH = (1980, 1, 1, 0, 0, 0)  # what a zip file can say at the earliest: the same sources give the same bytes
_WRITABLE = 0o022  # by the group or by all
_MANIFEST = "META-INF/MANIFEST.MF"


class BuildError(Exception):
    """There is no jar and none can be made. The message is one line; all that the compiler said is its cause."""


def find_jar() -> Path:
    """The jar for the Spark in use, made now if there is none. Raise `BuildError` when that is not possible."""
    home = spark_home()
    version = spark_version(home)
    name = jar_name(version)
    if (shipped := SHIPPED / name).exists():
        return shipped
    cached = cache_folder() / name
    if not cached.exists():
        cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(cached.parent)
        with _locked(cached.parent / "lock"):
            if not cached.exists():
                build(source_folders(version), home, cached)
    _check_owner(cached.parent)
    _check_owner(cached)
    return cached


def _check_owner(path: Path) -> None:
    """Refuse what somebody else could have changed: it becomes code of the user's queries. What is ours is closed."""
    found = path.lstat()
    if found.st_uid == os.geteuid() and not path.is_symlink() and found.st_mode & _WRITABLE:
        path.chmod(found.st_mode & 0o7777 & ~_WRITABLE)
    elif found.st_uid not in (0, os.geteuid()) or path.is_symlink() or found.st_mode & _WRITABLE:
        raise BuildError(
            f"{path} belongs to somebody else or can be changed by others, and its code would run in your queries: "
            "remove it, or set XDG_CACHE_HOME to a folder of your own"
        )


def spark_home() -> Path:
    """The folder of the Spark that PySpark starts: `$SPARK_HOME`, else the one in the PySpark package."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BuildError("PySpark is not installed: pip install 'safekeeper[spark]'")
    return Path(spec.origin).parent


def spark_version(home: Path) -> str:
    """The minor version of the Spark in *home*, as its jars tell it: "4.3". Raise `BuildError` without a bridge."""
    cores = [path.name for path in home.glob("jars/spark-core_*.jar")]
    found = re.fullmatch(r"spark-core_[\d.]+-((\d+\.\d+)\.(\d+).*)\.jar", cores[0]) if cores else None
    if found is None:
        raise BuildError(f"{home} holds no Spark (jars/spark-core_*.jar): install PySpark, or correct SPARK_HOME")
    release, minor, patch = found.groups()
    if minor not in SUPPORTED:
        raise BuildError(f"there is no bridge for Spark {minor}, only for {', '.join(SUPPORTED)}: change PySpark")
    if (*map(int, minor.split(".")), int(patch)) < FIRST:
        oldest = ".".join(map(str, FIRST))
        raise BuildError(f"there is no bridge for Spark {release}, only from {oldest} on: change PySpark")
    return minor


def source_folders(version: str) -> tuple[Path, ...]:
    """The folders whose Java files make the jar for Spark *version*, a minor one."""
    at = SUPPORTED.index(version)
    names = [version, *(f"until-{one}" for one in SUPPORTED[at:]), *(f"since-{one}" for one in SUPPORTED[: at + 1])]
    return SOURCES, *(folder for name in names if (folder := SHIMS / name).is_dir())


def jar_name(version: str) -> str:
    """The file name of the jar for Spark *version*."""
    digest = hashlib.sha256()
    for folder in source_folders(version):
        for path in _java_files(folder):
            for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
                digest.update(len(part).to_bytes(8, "little") + part)
    return f"safekeeper-spark-{version}-{digest.hexdigest()[:16]}.jar"


def cache_folder() -> Path:
    """Where jars that were built at first use are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "safekeeper"


def build(folders: Sequence[Path], home: Path, target: Path, options: Sequence[str] = ()) -> None:
    """Compile the Java files below *folders* against the Spark in *home* into the jar *target*, which appears whole."""
    files = [file for folder in folders for file in _java_files(folder)]
    if not files:
        raise BuildError(f"{folders[0]} holds no Java files: the installation is not complete")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        classes, new = Path(scratch, "classes"), Path(scratch, "new.jar")
        _compile(files, home, classes, options)
        _pack(classes, new)
        new.chmod(0o644)
        os.replace(new, target)


def find_tool(name: str) -> str:
    """A program of the JDK: of `$JAVA_HOME` if that is set, else the one on the path. Raise `BuildError` if missing."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=os.path.join(home, "bin") if home else None)
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on the path"
        raise BuildError(f"there is no {name} {where}: install a JDK from 17 on (Debian: openjdk-17-jdk-headless)")
    return found


def _compile(files: list[Path], home: Path, classes: Path, options: Sequence[str]) -> None:
    javac = find_tool("javac")
    command = [javac, "--release", "17", "-proc:none", "-encoding", "UTF-8", *options]
    command += ["-classpath", f"{home}/jars/*", "-d", str(classes), *map(str, files)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        said = result.stdout + result.stderr
        first = next((line for line in said.splitlines() if "error:" in line), "no reason given")
        raise BuildError(f"the bridge does not compile with {javac}: {first}") from RuntimeError(said)


def _pack(classes: Path, target: Path) -> None:
    """A jar is a zip file whose manifest comes first."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), "Manifest-Version: 1.0\r\n\r\n")
        for path in sorted(classes.rglob("*.class")):
            entry = zipfile.ZipInfo(path.relative_to(classes).as_posix(), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            jar.writestr(entry, path.read_bytes())


def _java_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.java"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
