"""Two backends that the agent loads as it would load any third party's. `plain:` is `file:` that cannot create.

`watched:` is `file:` that writes down what is asked of it, and dies when it is told to:

    PATH.log        a line for each call: its name and how many ids it was about
    PATH.before     made by a test: the next write kills the process before anything is written
    PATH.after      likewise, when everything is written and nothing is acknowledged
"""

import os
import signal
from contextlib import suppress
from typing import Self

from safekeeper.backends.file import FileBackend
from safekeeper.url import Url


class PlainBackend(FileBackend):
    create = None


class WatchedBackend(FileBackend):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._beside = path

    @classmethod
    def from_url(cls, url: Url) -> Self:
        return cls(url.local_path())

    def write(self, batch):
        self._note("write", len(batch))
        self._die("before")
        receipt = super().write(batch)
        self._die("after")
        return receipt

    def read(self, ids):
        self._note("read", len(ids))
        return super().read(ids)

    def keys(self, group):
        self._note("keys", 1)
        return super().keys(group)

    def _note(self, call: str, count: int) -> None:
        with open(f"{self._beside}.log", "a") as log:
            log.write(f"{call} {count}\n")

    def _die(self, moment: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._beside}.{moment}")
            os.kill(os.getpid(), signal.SIGKILL)
