"""Events that are taken again after a recovery: in the recorded order, without emitting, and compared with what was."""

from __future__ import annotations

from collections import deque
from typing import cast

from safekeeper.errors import Diverged
from safekeeper.journal.image import Image
from safekeeper.streams.carrier import Position


class EventReplay:
    """From the moment where replay begins to the end of the journal."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._end = image.at
        self._runs = deque(image.order())
        self._emitted: dict[int, list[tuple[str, bytes, bytes]]] = {}  # by event, as it was
        for _, stream, outputs in image.outputs():
            for event, key, body in zip(outputs.events, outputs.keys, outputs.bodies, strict=True):
                self._emitted.setdefault(event, []).append((stream, key, body))
        self._now: list[tuple[str, bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._ignored = False
        self._source, self._position = "", cast("Position", 0)

    @property
    def _where(self) -> str:
        return f"event {self._position} of {self._source}"

    @property
    def expects(self) -> str:
        """The input that comes next."""
        return self._runs[0][0]

    def begin(self, source: str, position: Position) -> None:
        """An event of *source* begins. Raise `ValueError` if another input comes next."""
        if source != self.expects:
            raise ValueError(f"an event of {source} is replayed, but {self.expects} came next: take `expects` first")
        self._source, self._position = source, position
        self.drop()

    def drop(self) -> None:
        """Forget what the event has done so far."""
        self._now, self._parts, self._ignored = [], [], False

    def again(self) -> None:
        """The event will come again."""
        self.drop()

    def covers(self, key: bytes, event: int) -> bool:
        """Whether the newest record of *key* has what *event* did to it, so that it is to be ignored."""
        self._parts.append(key)
        covered = self._image.recorded_at(key)
        if not covered:
            raise Diverged(f"{self._where} opens part {key!r:.80} when it is replayed, which it did not before")
        if covered >= event:
            self._ignored = True
            return True
        return False

    def emit(self, stream: str, key: bytes, body: bytes) -> None:
        """The event would emit this."""
        self._now.append((stream, key, body))

    def close(self, key: bytes) -> None:
        """The event would close this part."""
        if not self._ignored:
            raise Diverged(f"{self._where} closes part {key!r:.80} when it is replayed, which it did not before")

    def commit(self, event: int) -> bool:
        """The event is done; whether it was the last one. Raise `Diverged` if it did something else than before."""
        if not self._ignored:
            before = self._emitted.get(event, [])
            if (before or self._now) and sorted(before) != sorted(self._now):
                parts = ", ".join(f"{key!r:.80}" for key in self._parts) or "no part"
                raise Diverged(
                    f"{self._where}, which touches {parts}, emits {_show(self._now)} when it is replayed; before, it"
                    f" emitted {_show(before)}"
                )
        input, count = self._runs.popleft()
        if count > 1:
            self._runs.appendleft((input, count - 1))
        if self._runs:
            return False
        at = self._end.positions.get(self._source)
        if at != self._position or event != self._end.events:
            raise Diverged(f"replay ends with {self._where}, the journal at {at}: the input has changed")
        return True


def _show(outputs: list[tuple[str, bytes, bytes]]) -> str:
    if not outputs:
        return "nothing"
    stream, _, body = outputs[0]
    more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
    return f"{body!r:.80} to {stream}{more}"
