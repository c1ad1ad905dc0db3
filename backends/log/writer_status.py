"""The writer status: a small mapped file, `head`, in which a writer says how far it is.

It is never synced, and nothing depends on it alone.

    word:     0 "SKLOGHED" | 1 version | 2 visible | 3 ~visible | 4 synced | 5 ~synced | 6 generation | 7 ~generation
              | 8 taken | 9 ~taken | 10 choosing | 11 fenced | 12, 13 boot

A word is stored in one step. A pair whose halves do not match is being changed, was left so by a kill, or is damaged.
Of `visible` and `taken` the higher half is true then, unless they are far apart; the others say nothing. The status
of a writer that knew of no others ends with word 7, one that did not say `boot` with word 11.

`boot` names the run of the kernel under which the status was made. As long as that lasts, every store to a mapped file
is seen by all: the status is not old then, and nobody may see more than is `visible`.
"""

from __future__ import annotations

import mmap
import os
from functools import cache
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from safekeeper.backends.shared.records import VERSION

NAME: Final = "head"
TEMPORARY: Final = "head.tmp"
_MARK: Final = int.from_bytes(b"SKLOGHED", "little")
_VISIBLE, _SYNCED, _GENERATION, _TAKEN, _CHOOSING, _FENCED, _BOOT = 2, 4, 6, 8, 10, 11, 12
_WORDS: Final = 14
_WORDS_TO_SHARE: Final = 12
_FEWEST_WORDS: Final = 8
_MASK: Final = (1 << 64) - 1
_FAR: Final = 1 << 32  # more than lies between two sequences that one writer chooses
_NO_BOOT: Final = (0, 0)


@cache
def this_boot() -> tuple[int, int]:
    """What tells this run of the kernel from all others; zeros if it does not say."""
    try:
        number = UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).int
    except (OSError, ValueError):
        return _NO_BOOT
    return number >> 64, number & _MASK


class WriterStatus:
    """A mapped writer status, for its writer or for others."""

    def __init__(self, fd: int, access: int) -> None:
        size = os.fstat(fd).st_size // 8 * 8
        self._words = memoryview(mmap.mmap(fd, min(size, 8 * _WORDS), access=access)).cast("Q")
        self._shares = len(self._words) >= _WORDS_TO_SHARE

    @classmethod
    def of_writer(cls, folder: Path, visible: int, synced: int, generation: int) -> Self:
        """A new status, whole from the start, in place of that of an earlier writer, which may live and use its own."""
        temporary = folder / TEMPORARY
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, bytes(8 * _WORDS), 0)
            status = cls(fd, mmap.ACCESS_WRITE)
        finally:
            os.close(fd)
        status._words[0], status._words[1] = _MARK, VERSION
        status._words[_BOOT], status._words[_BOOT + 1] = this_boot()
        status.take(visible)
        status.publish(visible, synced)
        status.publish_generation(generation)
        os.rename(temporary, folder / NAME)
        return status

    @classmethod
    def of_reader(cls, folder: Path) -> Self | None:
        """The status of a folder; None if there is none that makes sense."""
        return cls._open(folder, os.O_RDONLY, mmap.ACCESS_READ)

    @classmethod
    def fence(cls, folder: Path) -> None:
        """Let the writer that made the status of *folder*, should it live, acknowledge nothing more."""
        status = cls._open(folder, os.O_RDWR, mmap.ACCESS_WRITE)
        if status is not None and status._shares:
            status._words[_FENCED] = 1

    @classmethod
    def reveal(cls, folder: Path, sequence: int) -> None:
        """Let everybody see what the writer that made the status of *folder*, which is gone, has left unanswered: those
        who have that status mapped, and those who open it, at the same moment."""
        status = cls._open(folder, os.O_RDWR, mmap.ACCESS_WRITE)
        if status is not None:
            status._words[_VISIBLE], status._words[_VISIBLE + 1] = sequence, sequence ^ _MASK

    @classmethod
    def _open(cls, folder: Path, flags: int, access: int) -> Self | None:
        try:
            fd = os.open(folder / NAME, flags | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            if os.fstat(fd).st_size < 8 * _FEWEST_WORDS:
                return None
            status = cls(fd, access)
        finally:
            os.close(fd)
        return status if (status._words[0], status._words[1]) == (_MARK, VERSION) else None

    @property
    def visible(self) -> int | None:
        """The last sequence that readers may see; None if that cannot be told."""
        return self._higher(_VISIBLE)

    @property
    def bound(self) -> int | None:
        """The last sequence that anybody may see, if that is sure: what is behind it was never answered. None if the
        status may be older than what it speaks of, or does not tell."""
        boot = tuple(self._words[_BOOT : _BOOT + 2])
        return self.visible if boot == this_boot() != _NO_BOOT else None

    @property
    def synced(self) -> int | None:
        """The last sequence that is known to be durable; None if that cannot be told."""
        return self._pair(_SYNCED)

    @property
    def generation(self) -> int | None:
        """The generation of the manifest; None if that cannot be told now."""
        return self._pair(_GENERATION)

    @property
    def taken(self) -> int | None:
        """The highest sequence that the writer has given to a block; None if it never said."""
        return self._higher(_TAKEN) if self._shares else None

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: every block to come will have a sequence chosen from now on."""
        return self._shares and not self._words[_CHOOSING] and self._pair(_TAKEN) == self._pair(_VISIBLE) is not None

    @property
    def fenced(self) -> bool:
        """Whether another process has taken the folder over."""
        return self._shares and self._words[_FENCED] != 0

    def publish(self, visible: int, synced: int) -> None:
        """Say how far the writer is."""
        words = self._words
        words[_VISIBLE], words[_VISIBLE + 1] = visible, visible ^ _MASK
        words[_SYNCED], words[_SYNCED + 1] = synced, synced ^ _MASK

    def publish_generation(self, generation: int) -> None:
        """Say that there is a new manifest."""
        self._words[_GENERATION], self._words[_GENERATION + 1] = generation, generation ^ _MASK

    def choose(self) -> None:
        """Say that a sequence is being chosen: what comes of it may be lower than what others choose meanwhile."""
        self._words[_CHOOSING] = 1

    def take(self, sequence: int) -> None:
        """Say which sequence was chosen, before anything is written with it."""
        self._words[_TAKEN], self._words[_TAKEN + 1] = sequence, sequence ^ _MASK
        self._words[_CHOOSING] = 0

    def _higher(self, at: int) -> int | None:
        number, other = self._words[at], self._words[at + 1] ^ _MASK
        return max(number, other) if abs(number - other) < _FAR else None

    def _pair(self, at: int) -> int | None:
        number, complement = self._words[at], self._words[at + 1]
        return number if number ^ _MASK == complement else None
