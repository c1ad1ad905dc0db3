"""Where and with what something was measured: numbers without this cannot be compared."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import safekeeper
from safekeeper.backends.shared.local_files import file_system_type

PACKAGES = (
    "numpy",
    "pyarrow",
    "xxhash",
    "rocksdict",
    "plyvel",
    "lmdb",
    "fsspec",
    "s3fs",
    "redis",
    "happybase",
    "jpype1",
    "pyspark",
)
"""Whose versions matter, where they are installed."""
_PROGRAMS = {
    "Java": (("java", "-version"), re.compile(r'version "([^"]+)"')),
    "Redis server": (("redis-server", "--version"), re.compile(r"v=(\S+)")),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, the versions and the moment. Empty or 0: it was not noted."""

    date: str
    processor: str
    cores: int
    memory_bytes: int
    system: str
    file_system: str
    """Of the folder that was measured in."""
    load: float | None
    """How many processes wanted to run, on average over the minute before; None: it was not noted."""
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, folder: Path | None = None) -> Machine:
        """This machine, now."""
        versions = {"safekeeper": safekeeper.__version__, "Python": platform.python_version()}
        for package in PACKAGES:
            try:
                versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        versions |= {"SQLite": sqlite3.sqlite_version} | _program_versions()
        return cls(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            system=f"{platform.system()} {platform.release()}",
            file_system=file_system_type(folder or Path.cwd()),
            load=os.getloadavg()[0],
            versions=versions,
        )

    def sentence(self) -> str:
        """Everything in one line."""
        return f"{self.moment()}: {self.what()}"

    def moment(self) -> str:
        """When it was, and how busy the machine was then."""
        return self.date if self.load is None else f"{self.date}, load {self.load:.1f} at the end"

    def what(self) -> str:
        """The machine and the versions: what stays the same from one run to the next."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.cores} cores of {self.processor}, {self.memory_bytes / 2**30:.0f} GB, {self.system},"
            f" {self.file_system or 'unknown file system'}; {versions or 'versions were not noted'}."
        )

    def warning(self) -> str:
        """What is to be said before numbers that were measured while others used the machine, else nothing."""
        if self.load is None or self.load <= 2 * self.cores:
            return ""
        return (
            f"The machine was busy with other work: {self.load:.0f} processes wanted its {self.cores} cores at the end."
            " Measure again on an idle one before relying on any of this."
        )


@cache
def _program_versions() -> dict[str, str]:
    """The versions of servers and their machines, where they are installed."""
    versions = {}
    for name, (command, pattern) in _PROGRAMS.items():
        with suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True)
            if found := pattern.search(done.stdout + done.stderr):
                versions[name] = found[1]
    return versions


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")
