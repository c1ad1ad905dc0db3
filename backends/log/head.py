"""The head: a small mapped file in which a writer says how far it is. Never synced, and nothing depends on it alone.

    word:     0 "SKLOGHED" | 1 version | 2 visible | 3 ~visible | 4 synced | 5 ~synced | 6 generation | 7 ~generation

A word is stored in one step. A pair whose halves do not match says nothing: it is being changed, or damaged.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final, Self

from safekeeper.backends.log.format import VERSION

NAME: Final = "head"
_MARK: Final = int.from_bytes(b"SKLOGHED", "little")
_VISIBLE, _SYNCED, _GENERATION = 2, 4, 6
_WORDS: Final = 8
_MASK: Final = (1 << 64) - 1


class Head:
    """A mapped head, for its writer or for readers."""

    def __init__(self, fd: int, access: int) -> None:
        self._words = memoryview(mmap.mmap(fd, 8 * _WORDS, access=access)).cast("Q")

    @classmethod
    def of_writer(cls, folder: Path) -> Self:
        """The head of a folder, made anew if it is missing or damaged."""
        fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size < 8 * _WORDS:
                os.pwrite(fd, bytes(8 * _WORDS), 0)
            head = cls(fd, mmap.ACCESS_WRITE)
        finally:
            os.close(fd)
        head._words[0], head._words[1] = _MARK, VERSION
        return head

    @classmethod
    def of_reader(cls, folder: Path) -> Self | None:
        """The head of a folder; None if there is none that makes sense."""
        try:
            fd = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            if os.fstat(fd).st_size < 8 * _WORDS:
                return None
            head = cls(fd, mmap.ACCESS_READ)
        finally:
            os.close(fd)
        return head if (head._words[0], head._words[1]) == (_MARK, VERSION) else None

    @property
    def visible(self) -> int | None:
        """The last sequence that readers may see; None if that cannot be told now."""
        return self._pair(_VISIBLE)

    @property
    def synced(self) -> int | None:
        """The last sequence that is known to be durable; None if that cannot be told."""
        return self._pair(_SYNCED)

    @property
    def generation(self) -> int | None:
        """The generation of the manifest; None if that cannot be told now."""
        return self._pair(_GENERATION)

    def publish(self, visible: int, synced: int) -> None:
        """Say how far the writer is."""
        words = self._words
        words[_VISIBLE], words[_VISIBLE + 1] = visible, visible ^ _MASK
        words[_SYNCED], words[_SYNCED + 1] = synced, synced ^ _MASK

    def publish_generation(self, generation: int) -> None:
        """Say that there is a new manifest."""
        self._words[_GENERATION], self._words[_GENERATION + 1] = generation, generation ^ _MASK

    def _pair(self, at: int) -> int | None:
        number, complement = self._words[at], self._words[at + 1]
        return number if number ^ _MASK == complement else None
