"""A server as a child process: started, waited for, killed, started again."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from safekeeper.errors import SafekeeperError

_START_SECONDS = 180


class DevError(SafekeeperError):
    """A server for development could not be had or did not start. The message says what to install or where to look."""


_given: set[int] = set()


def free_port() -> int:
    """A TCP port on loopback that nobody listens on, and another one each time.

    It is below the range that the kernel takes the ports of outgoing connections from, so that a server that is
    killed finds it free when it comes back.
    """
    for port in random.sample(range(10_000, 32_000), 100):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _given:  # whoever has it may listen a moment later
                _given.add(port)
                return port
    raise DevError("no free port was found on 127.0.0.1")


class ServerProcess:
    """A server that runs while it is entered, from `start` to `kill` or `stop` and again, with its data in *folder*."""

    def __init__(self, command: Sequence[str], folder: Path, ready: str) -> None:
        self._command = command
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = folder
        self.log = folder / "log"
        """What the server has said since it was started last."""

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise DevError("the server does not run")
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the server without waiting for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # setpriv has the kernel kill the server when we die, and then becomes the server: same process id.
        command = [find_command("setpriv"), "--pdeathsig", "KILL", *self._command]
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def wait_until_ready(self) -> None:
        """Return when the server, which was launched, is ready."""
        give_up = time.monotonic() + _START_SECONDS
        while not self.is_ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                said = " ".join(self.log.read_text(errors="replace").split())
                raise DevError(f"{self._command[0]} did not start: {said[-500:]}")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Whether the server's log says that it can be used. Where that is not enough, a subclass asks more of it."""
        return self._ready in self.log.read_text(errors="replace")

    def kill(self) -> None:
        """End the server at once, as a crash would. That it does not run is not an error."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Let the server end in order. That it does not run is not an error."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


def find_command(name: str) -> str:
    """The path of a command that the system has. Raise `DevError` if it has not."""
    path = shutil.which(name)
    if path is None:
        raise DevError(f"{name} is not installed")
    return path
