"""Java servers without an installation: Maven resolves a pom, the jars stay in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from rich.console import Console

from safekeeper.dev.binaries import cache_folder
from safekeeper.dev.process import DevError, find_command

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def fetch_jars(pom_name: str) -> Path:
    """The folder with all jars that the pom *pom_name* of this package asks for, fetched now if they are not there."""
    pom = resources.files("safekeeper.dev").joinpath(pom_name).read_bytes()
    return fetch_pom(pom_name.removesuffix("-pom.xml"), pom)


def fetch_pom(name: str, pom: bytes) -> Path:
    """The folder with all jars that *pom* asks for, fetched now if they are not there; *name* is for people.

    The folder's name contains the pom's hash: another pom gets another folder. Several processes may ask at once.
    """
    folder = cache_folder() / f"{name}-{hashlib.sha256(pom).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with Console(stderr=True).status(f"Fetching the jars of {name} with Maven, once, for about a minute"):
                _fetch(pom, folder)
    return folder


def _fetch(pom: bytes, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        copy_dependencies(pom, Path(scratch, "jars"))
        os.rename(f"{scratch}/jars", folder)


def copy_dependencies(pom: bytes, folder: Path) -> None:
    """Let Maven put all jars that *pom* asks for into *folder*; raise `DevError` if it cannot."""
    if shutil.which("mvn") is None:
        raise DevError("mvn is not installed: apt-get install maven")
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "pom.xml").write_bytes(pom)
        command = [find_command("mvn"), "-B", "-q", "-f", f"{scratch}/pom.xml", _COPY]
        command += [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DevError(f"mvn could not fetch the jars: {' '.join(done.stdout.split())[:500]}")
