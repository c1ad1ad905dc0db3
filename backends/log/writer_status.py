"""The writer status: a small file, `head`, in which a writer says how far it is.

It is never synced, and nothing depends on it alone.

    word:     0 "SKLOGHED" | 1 version | 2 visible | 3 ~visible | 4 synced | 5 ~synced | 6 generation | 7 ~generation
              | 8 taken | 9 ~taken | 10 choosing | 11 fenced | 12, 13 boot

A word is stored in one step: the kernel copies aligned words whole. A pair whose halves do not match is being changed,
was left so by a kill, or is damaged. Of `visible` and `taken` the higher half is true then, unless they are far apart;
the others say nothing. The status of a writer that knew of no others ends with word 7, one that did not say `boot` with
word 11.

It is read and written by calls, never through a map: a file system that has failed answers a call with an error, and a
touch of a mapped page with a signal that ends the process.

`boot` names the run of the kernel under which the status was made. As long as that lasts, every write to a file is seen
by all: the status is not old then, unless its file system was mounted again, and nobody may see more than is `visible`.
"""

from __future__ import annotations

import os
import struct
import weakref
from functools import cache
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from safekeeper.backends.log.files import place_of
from safekeeper.backends.log.open_files import most_kept, with_room
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
_ONE, _TWO, _THREE, _FOUR, _SIX, _ALL = (struct.Struct(f"<{count}Q") for count in (1, 2, 3, 4, 6, _WORDS))


@cache
def this_boot() -> tuple[int, int]:
    """What tells this run of the kernel from all others; zeros if it does not say."""
    try:
        number = UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).int
    except (OSError, ValueError):
        return _NO_BOOT
    return number >> 64, number & _MASK


class WriterStatus:
    """A writer status, for its writer or for others."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path
        self._place = place_of(fd)
        self._progress = WriterProgress(bytes(_SIX.size))  # as it was read last: it is often the same
        self._close = weakref.finalize(self, os.close, fd)  # when nobody reads it any more, in whichever thread
        self._close.atexit = False
        self._shares = os.fstat(fd).st_size >= 8 * _WORDS_TO_SHARE
        self._is_of_this_boot = this_boot() != _NO_BOOT and os.pread(fd, 16, 8 * _BOOT) == _TWO.pack(*this_boot())

    @classmethod
    def of_writer(cls, folder: Path, visible: int, synced: int, generation: int) -> Self:
        """A new status, whole from the start, in place of that of an earlier writer, which may live and use its own."""
        temporary = folder / TEMPORARY
        temporary.unlink(missing_ok=True)
        numbers = (number for each in (visible, synced, generation, visible) for number in (each, each ^ _MASK))
        fd = with_room(lambda: os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            os.pwrite(fd, _ALL.pack(_MARK, VERSION, *numbers, 0, 0, *this_boot()), 0)
            os.rename(temporary, folder / NAME)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, folder / NAME)

    @classmethod
    def of_reader(cls, folder: Path) -> Self | None:
        """The status of a folder; None if there is none that makes sense."""
        status = cls._open(folder, os.O_RDONLY)
        if status is not None:
            if len(_kept) < most_kept():
                _kept.add(status)
            else:  # opened for each look
                status._fd = -1
                status._close()
        return status

    @classmethod
    def fence(cls, folder: Path) -> None:
        """Let the writer that made the status of *folder*, should it live, acknowledge nothing more."""
        status = cls._open(folder, os.O_RDWR)
        if status is not None and status._shares:
            os.pwrite(status._fd, _ONE.pack(1), 8 * _FENCED)

    @classmethod
    def reveal(cls, folder: Path, sequence: int) -> None:
        """Let everybody see what the writer that made the status of *folder*, which is gone, has left unanswered: those
        who have that status open, and those who open it, at the same moment."""
        status = cls._open(folder, os.O_RDWR)
        if status is not None:
            os.pwrite(status._fd, _TWO.pack(sequence, sequence ^ _MASK), 8 * _VISIBLE)

    @classmethod
    def _open(cls, folder: Path, flags: int) -> Self | None:
        try:
            fd = with_room(lambda: os.open(folder / NAME, flags | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            first = os.pread(fd, 8 * _FEWEST_WORDS, 0)
            makes_sense = len(first) == 8 * _FEWEST_WORDS and _TWO.unpack_from(first) == (_MARK, VERSION)
        except BaseException:
            os.close(fd)
            raise
        if not makes_sense:
            os.close(fd)
            return None
        return cls(fd, folder / NAME)

    def progress(self) -> WriterProgress:
        """How far the writer is, in one look."""
        raw = self._read(_SIX.size, _VISIBLE)
        progress = self._progress  # another thread may replace it
        if raw != progress.raw:
            progress = self._progress = WriterProgress(raw)
        return progress

    @property
    def visible(self) -> int | None:
        """The last sequence that readers may see; None if that cannot be told."""
        return _higher(*self._two(_VISIBLE))

    @property
    def bound(self) -> int | None:
        """The last sequence that anybody may see before the folder is claimed. None if the kernel was started since, so
        that the status may be older than what it speaks of, or if it does not tell."""
        return self.visible if self._is_of_this_boot else None

    @property
    def synced(self) -> int | None:
        """The last sequence that is known to be durable; None if that cannot be told."""
        return _same(*self._two(_SYNCED))

    @property
    def generation(self) -> int | None:
        """The generation of the manifest; None if that cannot be told now."""
        return _same(*self._two(_GENERATION))

    @property
    def taken(self) -> int | None:
        """The highest sequence that the writer has given to a block; None if it never said."""
        return _higher(*self._two(_TAKEN)) if self._shares else None

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: every block to come will have a sequence chosen from now on."""
        if not self._shares or self._one(_CHOOSING):  # this first: it is set before the others change
            return False
        taken = _same(*self._two(_TAKEN))
        return taken is not None and taken == _same(*self._two(_VISIBLE))

    @property
    def fenced(self) -> bool:
        """Whether another process has taken the folder over."""
        return self._shares and self._one(_FENCED) != 0

    def is_removed(self) -> bool:
        """Whether nobody who comes now will find it."""
        return os.fstat(self._fd).st_nlink == 0

    def is_in(self, folder: Path) -> bool:
        """Whether it is the one that others find in *folder*."""
        return place_of(folder / NAME) == place_of(self._fd)

    def publish(self, visible: int, synced: int) -> None:
        """Say how far the writer is. If this raises an `OSError`, it was not said."""
        os.pwrite(self._fd, _FOUR.pack(visible, visible ^ _MASK, synced, synced ^ _MASK), 8 * _VISIBLE)

    def publish_generation(self, generation: int) -> None:
        """Say that there is a new manifest."""
        os.pwrite(self._fd, _TWO.pack(generation, generation ^ _MASK), 8 * _GENERATION)

    def choose(self) -> None:
        """Say that a sequence is being chosen: what comes of it may be lower than what others choose meanwhile."""
        os.pwrite(self._fd, _ONE.pack(1), 8 * _CHOOSING)

    def take(self, sequence: int) -> None:
        """Say which sequence was chosen, before anything is written with it."""
        os.pwrite(self._fd, _THREE.pack(sequence, sequence ^ _MASK, 0), 8 * _TAKEN)

    def _one(self, at: int) -> int:
        (word,) = _ONE.unpack(self._read(8, at))
        return int(word)

    def _two(self, at: int) -> tuple[int, int]:
        number, complement = _TWO.unpack(self._read(16, at))
        return number, complement

    def _read(self, size: int, at: int) -> bytes:
        if self._fd >= 0:
            raw = os.pread(self._fd, size, 8 * at)
            return raw if len(raw) == size else raw.ljust(size, b"\0")  # what somebody has cut off says nothing
        try:
            fd = with_room(lambda: os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return bytes(size)
        try:
            return os.pread(fd, size, 8 * at).ljust(size, b"\0") if place_of(fd) == self._place else bytes(size)
        finally:
            os.close(fd)


_kept: weakref.WeakSet[WriterStatus] = weakref.WeakSet()


class WriterProgress:
    """How far a writer is, or None where that cannot be told."""

    __slots__ = ("generation", "raw", "synced", "visible")

    def __init__(self, raw: bytes) -> None:
        words = _SIX.unpack(raw)
        self.raw = raw
        self.visible = _higher(words[0], words[1])
        self.synced = _same(words[2], words[3])
        self.generation = _same(words[4], words[5])


def _higher(number: int, complement: int) -> int | None:
    """What a pair of words says of which one may be older."""
    other = complement ^ _MASK
    return max(number, other) if abs(number - other) < _FAR else None


def _same(number: int, complement: int) -> int | None:
    """What a pair of words says that must agree."""
    return number if number ^ _MASK == complement else None
