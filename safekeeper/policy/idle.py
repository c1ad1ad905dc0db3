"""One capture or paste at a time among the operators and standbys of a process, by one of the rules of `minmax`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from weakref import WeakKeyDictionary

from safekeeper.policy.capture import CaptureView, Choice, PasteView, What
from safekeeper.policy.minmax import CaptureRule, CaptureUnit, PayingRule, WaitingPaste, expected_recovery

_ASKS = 0.25  # seconds; who has not asked for longer is gone, or stopped
_LATE = 0.05  # seconds that whoever has its turn may take to ask, before the next ones come later for it
_LEAST = 1e-5  # seconds that a capture takes at least, for those who divide by it


@dataclass(slots=True)
class _Known:
    unit: CaptureUnit
    asked: float = -inf
    left: bool = False


class IdleCapture:
    """Give one `IdleCapture` to all operators of a process, those that stand by, too. One after the other they append a
    block, or paste what they have received as a standby, whoever *rule* chooses: `PayingRule`, unless another is given.
    So an event waits for the capture of one operator, not of all.

    What it goes by is measured: how long the events of each operator take that are in no block, how long its last
    captures took; for a standby what its owner's blocks say, and how long its last pastes took. Both take no more than
    *share* of the time; if one alone would take more, they come at least *at_least* seconds apart for each operator
    that has something to append, and for each standby that has something to paste.

    backup      which process has the standby of an operator: those of one backup are recovered one after the other. All
                have the same, unless it is given
    """

    fuzzy = False
    one_at_a_time = True

    def __init__(
        self,
        rule: CaptureRule | None = None,
        *,
        share: float = 0.1,
        at_least: float = 5.0,
        backup: Callable[[CaptureView], str] = lambda view: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < share <= 1 or at_least <= 0:
            raise ValueError(f"share= takes a part of 1, at_least= more than 0 s, not {share} and {at_least}")
        self._rule, self._share, self._at_least = rule or PayingRule(), share, at_least
        self._backup, self._clock = backup, clock
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[CaptureView, _Known] = WeakKeyDictionary()
        self._standbys: WeakKeyDictionary[PasteView, float] = WeakKeyDictionary()  # when they last asked
        self._next = 0.0
        self._chosen: CaptureUnit | PasteView | None = None

    def enter(self, view: CaptureView) -> None:
        """As `KnowsOperators.enter`."""
        with self._lock:
            self._meet(view, self._clock())

    def leave(self, view: CaptureView) -> None:
        """As `KnowsOperators.leave`."""
        with self._lock:
            known = self._known.get(view)
            if known is not None:
                known.left, known.unit.free = True, False  # also if it is its turn

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        with self._lock:
            now = self._clock()
            mine = self._ask(view, now)
            if not view.unsaved or (now < self._next and view.waited < self._at_least):
                return None
            if view.waited < self._at_least and self._choose(now) is not mine:
                return None
            self._take_turn(now, mine.capture)
            mine.since = now
            return Choice.CHANGED

    def may_paste(self, view: PasteView) -> bool:
        """As `PasteTurns.may_paste`."""
        with self._lock:
            now = self._clock()
            self._standbys[view] = now
            waiting = view.waiting
            if not waiting:
                return False
            if view.waited < self._at_least and (now < self._next or self._choose(now) is not view):
                return False
            self._take_turn(now, waiting)
            return True

    def _take_turn(self, now: float, seconds: float) -> None:
        self._chosen = None
        self._next = max(self._next, now - _LATE) + seconds / self._share

    @property
    def expected_recovery(self) -> float:
        """How many seconds it would take to process again what is in no block, if each backup does so by itself."""
        with self._lock:
            now = self._clock()
            return expected_recovery(self._units(now), now)

    def units(self) -> list[tuple[float, CaptureUnit]]:
        """Copies of what is known of each operator that is open or asks, with the time now."""
        with self._lock:
            now = self._clock()
            return [(now, replace(unit)) for unit in self._units(now)]

    def _choose(self, now: float) -> CaptureUnit | PasteView | None:
        """Whose turn it is, until it has taken it: a rule may count whom it has chosen."""
        units = self._units(now)
        if not self._still_wants(now):
            pastes = self._pastes(now)
            deed = self._rule.choose(now, units, list(pastes))
            self._chosen = pastes[deed] if isinstance(deed, WaitingPaste) else deed
        return self._chosen

    def _still_wants(self, now: float) -> bool:
        """Whether whoever was chosen still has something to do, and asks."""
        chosen = self._chosen
        if chosen is None or isinstance(chosen, CaptureUnit):
            return chosen is not None and chosen.free
        return chosen.waiting > 0 and now - self._standbys.get(chosen, 0.0) <= _ASKS

    def _pastes(self, now: float) -> dict[WaitingPaste, PasteView]:
        """What may be pasted: of each owner what has waited longest."""
        asking = [view for view, asked in self._standbys.items() if now - asked <= _ASKS]
        found = {}
        for owner in {view.owner for view in asking}:
            views = [view for view in asking if view.owner == owner]
            oldest = max((view for view in views if view.waiting), key=lambda view: view.waited, default=None)
            if oldest is not None:
                recovery, load = sum(view.recovery for view in views), sum(view.load for view in views)
                found[WaitingPaste(owner, str(id(oldest)), oldest.waiting, recovery, load)] = oldest
        return found

    def _meet(self, view: CaptureView, now: float) -> _Known:
        known = self._known.get(view)
        if known is None:
            name = getattr(view, "name", "") or str(len(self._known))
            known = self._known[view] = _Known(CaptureUnit(name, "", 0.0, _LEAST, _LEAST, since=now))
        return known

    def _ask(self, view: CaptureView, now: float) -> CaptureUnit:
        known = self._meet(view, now)
        if known.asked == -inf:
            known.unit.since = now  # however long it had no events before
        known.asked = now
        return known.unit

    def _units(self, now: float) -> list[CaptureUnit]:
        """What is known of each operator, by now."""
        found = []
        for view, known in self._known.items():
            if known.left:
                continue
            unit = known.unit
            unit.backup = self._backup(view)  # it may have another one by now
            unit.load = view.unsaved * view.event_seconds / max(now - unit.since, 1e-9)
            unit.capture = unit.paste = max(view.capture_seconds, _LEAST)
            unit.free = view.unsaved > 0 and now - known.asked <= _ASKS
            found.append(unit)
        return found
