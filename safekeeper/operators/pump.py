"""What goes on beside an operator's events, in one thread: acknowledgements, outputs, blocks when no event comes."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Event as Signal
from threading import Thread
from typing import TYPE_CHECKING

from safekeeper.errors import QueueFull, SafekeeperError, Unavailable
from safekeeper.journal import Journal, Outputs
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.lanes import Bounds
from safekeeper.keeper.notices import log_safely
from safekeeper.operators.core import Core
from safekeeper.streams.carrier import Outlet, StreamElement

if TYPE_CHECKING:
    from safekeeper.operators.operator import Operator

_log = logging.getLogger("safekeeper")

_ASK_READERS = 0.1  # seconds between questions how far readers have come, where that is waited for
_ASK_RARELY = 1.0  # where it is only to trim
_LOOK_AGAIN = 0.01  # seconds between questions whether a block is due, after the linger
_CHECK = 5.0  # seconds after which an operator without events looks whether it still owns its journal
_BACKOFF = Backoff(first=0.01, most=1.0)


class Pump:
    """Acknowledges blocks, sends what is released, and has a block appended when there was no event for a while."""

    def __init__(self, operator: Operator, core: Core, journal: Journal, outlets: Mapping[str, Outlet]) -> None:
        self._operator, self._core, self._journal, self._outlets = operator, core, journal, outlets
        self._signal = Signal()
        self._stopping = False
        self._at_once: deque[tuple[str, Outputs]] = deque()  # to be sent before all others
        self._acknowledged = journal.acknowledged
        self._asked = 0.0
        self._checked = time.monotonic()
        self._working = True
        self._thread = Thread(target=self._run, name=f"safekeeper-operator-{operator.name}", daemon=True)

    def start(self) -> None:
        """Begin, with what was not confirmed before the recovery: nothing new may overtake it."""
        self._at_once.extend(self._core.release(0))
        self._thread.start()

    def stop(self) -> None:
        """End; what was not sent will be sent by the next owner."""
        self._stopping = True
        self._signal.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wake(self) -> None:
        """There is something to do."""
        self._signal.set()

    def send_at_once(self, outputs: Iterable[tuple[str, Outputs]]) -> None:
        """Send *outputs*, which no block need have."""
        before = len(self._at_once)
        self._at_once.extend(outputs)
        if len(self._at_once) > before:
            self._signal.set()

    @property
    def idle(self) -> bool:
        """Whether everything is acknowledged and sent."""
        return not (
            self._core.unsaved
            or self._journal.in_flight
            or self._at_once
            or self._acknowledged < self._journal.acknowledged
            or any(emitted.released < emitted.number for emitted in self._core.streams.values())
            or self._working
        )

    def has_room(self, bounds: Bounds) -> bool:
        """Whether more outputs may be emitted."""
        for emitted in self._core.streams.values():
            if emitted.held >= bounds.count or emitted.held_bytes >= bounds.nbytes:
                return False
        return True

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._working = True
                self._signal.clear()
                self._step()
                self._working = False
                self._operator.ring()
                self._signal.wait(self._patience())
        except BaseException as error:
            self._operator.fail(error)
        finally:
            self._working = False

    def _patience(self) -> float | None:
        """How long there is nothing to do, if nobody wakes us."""
        if self._core.unsaved:
            left = self._core.linger - self._core.since_block
            return left if left > 0 else _LOOK_AGAIN  # a policy waits for more, or too many blocks are under way
        return _ASK_READERS if self._core.held else _ASK_RARELY

    def _step(self) -> None:
        number = self._journal.acknowledge()
        while self._at_once:
            stream, outputs = self._at_once.popleft()
            self._send(stream, outputs)
        if number > self._acknowledged:
            self._send_released(number)
            self._acknowledged = number
            self._operator.acknowledged(number)
            self._checked = time.monotonic()
        self._operator.append_if_idle()
        self._ask_readers()
        self._check_owner()

    def _check_owner(self) -> None:
        """Learn that another has taken the journal, also where nothing is appended that would tell."""
        if time.monotonic() - self._checked >= _CHECK:
            self._checked = time.monotonic()
            with suppress(Unavailable):
                self._journal.check()

    def _send_released(self, number: int) -> None:
        for stream, outputs in self._core.release(number):
            self._send(stream, outputs)

    def _send(self, stream: str, outputs: Outputs) -> None:
        outlet = self._outlets[stream]
        elements = [
            StreamElement(number, body, key)
            for number, (key, body) in enumerate(zip(outputs.keys, outputs.bodies, strict=True), outputs.first)
        ]
        failures = 0
        while not self._stopping:
            try:
                outlet.send(elements)
                break
            except (Unavailable, QueueFull) as error:
                failures += 1
                if failures == 1:
                    log_safely(_log.warning, "output %s takes nothing, it is tried again: %s", stream, error)
                self._pause(_BACKOFF.delay(failures))
            except SafekeeperError as error:
                raise type(error)(f"output {stream}: {error}") from error
        else:
            return
        if outlet.retains:
            self._core.confirm(stream, outputs.last)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _ask_readers(self) -> None:
        """Learn what readers have acknowledged: it need not be kept any longer."""
        waiting = any(emitted.confirmed < emitted.released for emitted in self._core.streams.values())
        now = time.monotonic()
        if now - self._asked < (_ASK_READERS if waiting else _ASK_RARELY):
            return
        self._asked = now
        for stream, outlet in self._outlets.items():
            try:
                acknowledged = outlet.acknowledged()
            except Unavailable:
                continue
            emitted = self._core.streams[stream]
            emitted.acknowledged = max(min(acknowledged.values(), default=0), emitted.acknowledged)
            if not outlet.retains:  # without readers nobody is waited for
                self._core.confirm(stream, emitted.acknowledged if acknowledged else emitted.released)
