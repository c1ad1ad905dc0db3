"""Where the programs come from: the system, or a Debian package unpacked into a cache folder without installing it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from safekeeper.dev.process import DevError, find_command

PACKAGES = {
    "redis-server": "redis-server",
    "valkey-server": "valkey-server",
}
"""A program, and the Debian package that installs it."""

UNPACKED = {"valkey-server": ("valkey-server", "valkey-tools")}
"""Programs that Debian 12 has in its backports only: the packages to unpack, on top of those of `redis-server`."""


def find_server(name: str) -> str:
    """The path of the server *name*: installed, in the cache, or fetched into it now."""
    installed = shutil.which(name)
    if installed:
        return installed
    if name not in UNPACKED:
        raise DevError(f"{name} is not installed: apt-get install {PACKAGES[name]}")
    folder = cache_folder() / name
    program = folder / "usr" / "bin" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{name}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _unpack(UNPACKED[name], folder)
    return str(program)


def cache_folder() -> Path:
    """Where fetched programs are kept: `$SAFEKEEPER_CACHE`, or the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SAFEKEEPER_CACHE") or Path(home) / "safekeeper")


def _unpack(packages: tuple[str, ...], folder: Path) -> None:
    """Fetch *packages* from the backports of the release that runs here, and unpack them into *folder*."""
    release = _os_release().get("VERSION_CODENAME", "")
    mirror = _mirror(release)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        for folder_of_apt in ("lists/partial", "cache/archives/partial"):
            Path(scratch, folder_of_apt).mkdir(parents=True)
        sources = Path(scratch, "sources.list")
        keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
        sources.write_text(f"deb [signed-by={keys}] {mirror} {release}-backports main\n")
        settings = [f"Dir::Etc::SourceList={sources}", "Dir::Etc::SourceParts=-", "APT::Sandbox::User="]
        settings += [f"Dir::State::Lists={scratch}/lists", f"Dir::Cache={scratch}/cache"]
        apt = [find_command("apt-get"), *(word for setting in settings for word in ("-o", setting)), "--quiet=2"]
        _run([*apt, "update"], scratch)
        _run([*apt, "download", *packages], scratch)
        for package in Path(scratch).glob("*.deb"):
            _run([find_command("dpkg-deb"), "-x", str(package), f"{scratch}/root"], scratch)
        os.rename(f"{scratch}/root", folder)


def _mirror(release: str) -> str:
    """The mirror that this machine has the main packages of *release* from."""
    listed = _run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"])
    for site, name, component in (line.split() for line in listed.splitlines() if line.count(" ") == 2):
        if (name, component) == (release, "main"):
            return site
    raise DevError("there is no Debian mirror to fetch from: install valkey-server by hand and put it on PATH")


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def _run(command: list[str], folder: str | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevError(f"{' '.join(command[:1])} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
