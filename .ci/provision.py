"""Installs what is needed besides Python packages: Debian's packages, when run as root.

    provision.py [COMMAND...]       only what these commands need; everything without one

Whoever is not root installs the packages named below once, with apt or with whatever the system has.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

PACKAGES = {
    "chromium": "chromium",
    "fusermount3": "fuse3",
    "javac": "openjdk-17-jdk-headless",
    "ip": "iproute2",
    "losetup": "mount",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mvn": "maven",
    "openssl": "openssl",
    "postgres": "postgresql",
    "redis-server": "redis-server",
}
"""The command that is needed, and the package that has it. Debian does not put PostgreSQL's into PATH."""


def main() -> None:
    """Install the packages whose commands are missing."""
    wanted = sys.argv[1:] or list(PACKAGES)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *glob.glob("/usr/lib/postgresql/*/bin")])
    missing = [PACKAGES[command] for command in wanted if shutil.which(command, path=path) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"these packages are missing: {' '.join(missing)}: install them and run this again")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "--quiet=2"], check=True, env=environment)
    subprocess.run(["apt-get", "install", "--quiet=2", "--yes", *missing], check=True, env=environment)


if __name__ == "__main__":
    main()
