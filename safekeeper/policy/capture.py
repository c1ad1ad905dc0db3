"""When an operator appends a block to its journal, and which parts go into it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

from safekeeper.policy.every import Trigger


class Capture(Protocol):
    """Decides when a block is appended and what is in it.

    One with `by_time = True` is never due before the linger is over: it is asked after one in some events, not after
    each. One with `one_at_a_time = True` is not asked while a block is under way.
    """

    fuzzy: bool
    """Whether a block may leave out parts that have changed. Then recovery replays events, and each event must touch
    one part only."""

    def due(self, view: CaptureView) -> What | None:
        """What to capture now; None if nothing. Asked after each event, and when none comes for a while.

        A block always has the outputs, and the parts that were opened or closed, since the one before it.
        """


class Choice(Enum):
    """Which parts go into a block besides those that were opened or closed."""

    CHANGED = "changed"
    """All that have changed: recovery replays nothing."""
    ALL = "all"
    """All there are: recovery needs no older block."""


What: TypeAlias = Choice | Iterator[bytes]
"""Which parts go into a block: a choice, or their keys one after the other, each asked for when the one before it is
recorded. That may end at any time, such as when there was enough."""


class CaptureView(Protocol):
    """An operator, seen from here."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def unsaved(self) -> int:
        """Events that are not in a block."""

    @property
    def waited(self) -> float:
        """How many seconds ago the first of them was taken."""

    @property
    def since_block(self) -> float:
        """How many seconds ago the last block was captured; infinite if there was none since the opening."""

    @property
    def linger(self) -> float:
        """How many seconds are to be between two blocks, so that several events share one."""

    @property
    def trimmed(self) -> int:
        """How many outputs all readers have acknowledged, since the operator began."""

    @property
    def live(self) -> int:
        """How many parts there are."""

    @property
    def records(self) -> int:
        """How many records of parts recovery has to load."""

    @property
    def replayed(self) -> int:
        """How many events recovery has to replay, beginning with the first that is not in a record of its part."""

    @property
    def load_rate(self) -> float:
        """How many records are loaded in a second."""

    @property
    def replay_rate(self) -> float:
        """How many events are replayed in a second."""

    @property
    def event_seconds(self) -> float:
        """How many seconds of processor time an event takes, of those that were measured."""

    @property
    def capture_seconds(self) -> float:
        """How many seconds of processor time a capture takes, of the last ones."""

    @property
    def opening(self) -> float:
        """How many seconds recovery takes besides: until the store and the streams are open."""

    def oldest_record(self) -> bytes | None:
        """The part whose newest record is the oldest, if that is not in the block that is being captured."""

    def oldest_change(self) -> bytes | None:
        """The part with the oldest event that is not in a record."""


class PasteView(Protocol):
    """A standby, seen from here: what it has received of an operator, and has not pasted yet."""

    @property
    def owner(self) -> str:
        """The process that owns the operator: those of one owner are recovered one after the other."""

    @property
    def waiting(self) -> float:
        """How many seconds it takes to paste what was received; 0 if nothing waits."""

    @property
    def waited(self) -> float:
        """How many seconds ago the oldest of it came."""

    @property
    def load(self) -> float:
        """How many seconds the owner processes events in a second, by what its blocks say."""

    @property
    def recovery(self) -> float:
        """How many seconds it would take to paste what waits, and to process again what is in no block."""


@runtime_checkable
class PasteTurns(Protocol):
    """A `Capture` that also decides when standbys of the same process paste."""

    def may_paste(self, view: PasteView) -> bool:
        """Whether it is the turn of *view* to paste all that waits. Asked again and again while something does."""


@runtime_checkable
class KnowsOperators(Protocol):
    """A `Capture` that also wants to know which operators of the process are open, whether or not they have events."""

    def enter(self, view: CaptureView) -> None:
        """The operator *view* is open now."""

    def leave(self, view: CaptureView) -> None:
        """It is closed, or has failed: it holds nothing any more."""


class Lingering:
    """All parts that have changed, as soon as the linger is over since the block before: a lone event does not wait,
    and of many those share a block that come within the linger."""

    fuzzy = False
    by_time = True

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        return Choice.CHANGED if view.since_block >= view.linger else None


class Changed:
    """All parts that have changed, whenever *trigger* is due: a cut, so that recovery replays nothing."""

    fuzzy = False

    def __init__(self, trigger: Trigger) -> None:
        self._due = trigger.due

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        return Choice.CHANGED if self._due(view.unsaved, view.waited) else None
