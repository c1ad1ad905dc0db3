"""What goes on beside an operator's events, in one thread: acknowledgements, outputs, blocks when no event comes."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event as Signal
from threading import Thread
from typing import TYPE_CHECKING

from safekeeper.errors import Corruption, QueueFull, SafekeeperError, Unavailable
from safekeeper.journal import Journal, Outputs
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.lanes import Bounds
from safekeeper.keeper.notices import log_safely
from safekeeper.operators.core import Core
from safekeeper.operators.outputs import Emitted
from safekeeper.streams.carrier import Outlet, StreamElement, SupportsEpoch, SupportsNotice, SupportsSpill
from safekeeper.streams.retained import number_of

if TYPE_CHECKING:
    from safekeeper.operators.operator import Operator

_log = logging.getLogger("safekeeper")

_ASK_READERS = 0.1  # seconds between questions how far readers have come, where that is waited for
_ASK_RARELY = 1.0  # where it is only to trim
_LOOK_AGAIN = 0.01  # seconds between questions whether a block is due, after the linger
_CHECK = 5.0  # seconds after which an operator without events looks whether it still owns its journal
_READ_BACK = 16  # blocks that are read together for a reader that comes back
_BACKOFF = Backoff(first=0.01, most=1.0)


class Pump:
    """Acknowledges blocks, sends what is released, and has a block appended when there was no event for a while."""

    def __init__(
        self, operator: Operator, core: Core, journal: Journal, outlets: Mapping[str, Outlet], hold: Bounds
    ) -> None:
        self._keep = Bounds(max(hold.count // 2, 1), max(hold.nbytes // 2, 1))
        self._operator, self._core, self._journal, self._outlets = operator, core, journal, outlets
        self._signal = Signal()
        self._stopping = False
        self._at_once: deque[tuple[str, Outputs]] = deque()  # to be sent before all others
        self._acknowledged = journal.acknowledged
        self._asked = 0.0
        self._noticed = False
        self._checked = time.monotonic()
        self._working = True
        self._thread = Thread(target=self._run, name=f"safekeeper-operator-{operator.name}", daemon=True)

    def start(self) -> None:
        """Begin, with what was not confirmed before the recovery: nothing new may overtake it."""
        for outlet in self._outlets.values():
            if isinstance(outlet, SupportsEpoch):
                outlet.begin_epoch(self._journal.mark.epoch)
            if isinstance(outlet, SupportsNotice):
                outlet.on_acknowledged(self._notice)
        for stream, emitted in self._core.streams.items():
            if emitted.spilled.last > emitted.confirmed:
                self._offer_spilled(stream, emitted)
        self._at_once.extend(self._core.release(self._journal.acknowledged))
        self._thread.start()

    def _offer_spilled(self, stream: str, emitted: Emitted) -> None:
        """What a recovery has left in the journal: whoever sends the stream fetches it, or gets it now."""
        outlet = self._outlets[stream]
        if isinstance(outlet, SupportsSpill):
            outlet.spill(emitted.spilled.last, partial(self._fetch, stream))
            return
        number = emitted.confirmed
        while number < emitted.spilled.last and (outputs := self._read_back(stream, number)):
            self._at_once.extend((stream, some) for some in outputs)
            number = outputs[-1].last

    def _notice(self) -> None:
        """A reader has acknowledged something."""
        self._noticed = True
        self._signal.set()

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
            if emitted.in_memory >= bounds.count or emitted.bytes_in_memory >= bounds.nbytes:
                return False
        return True

    def _spill(self) -> None:
        """Let outputs leave memory that are in the journal and were sent, if readers leave too many of them."""
        for stream, outlet in self._outlets.items():
            emitted = self._core.streams[stream]
            if emitted.in_memory <= self._keep.count and emitted.bytes_in_memory <= self._keep.nbytes:
                continue
            if not isinstance(outlet, SupportsSpill):
                continue
            before = emitted.spilled.last
            upto = emitted.spill(self._acknowledged, self._keep.count // 2, self._keep.nbytes // 2)
            if upto > max(before, emitted.confirmed):
                if before <= emitted.confirmed:
                    self._tell_who_is_behind(stream, outlet)
                outlet.spill(upto, partial(self._fetch, stream))

    def _tell_who_is_behind(self, stream: str, outlet: Outlet) -> None:
        acknowledged = outlet.acknowledged()
        slowest = min(acknowledged, key=acknowledged.__getitem__, default="nobody")
        text = "output %s: reader %s has acknowledged %d of %d: what it lacks is kept in the journal"
        log_safely(_log.warning, text, stream, slowest, acknowledged.get(slowest, 0), outlet.last)

    def _fetch(self, stream: str, number: int, most: int) -> list[StreamElement]:
        """As `Fetch`: what has left memory, from the journal. If that is damaged, the operator stops."""
        found: list[StreamElement] = []
        try:
            read_back = self._read_back(stream, number)
        except Corruption as error:  # a reader would ask again for ever, and nobody would know why
            self._operator.fail(error)
            raise
        for outputs in read_back:
            found += [element for element in _elements(outputs) if number_of(element) > number]
            if len(found) >= most:
                break
        return found[:most]

    def _read_back(self, stream: str, number: int) -> list[Outputs]:
        """Outputs after *number* that are in blocks; none if they are confirmed by now."""
        blocks = self._core.streams[stream].spilled.after(number, _READ_BACK)
        return [block.out[stream] for block in self._journal.read(blocks) if stream in block.out]

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
            self._journal.clean()
        self._ask_readers()
        self._spill()
        self._operator.append_if_idle()
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
        outlet, elements = self._outlets[stream], _elements(outputs)
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
        if now - self._asked < (_ASK_READERS if waiting else _ASK_RARELY) and not self._noticed:
            return
        self._asked, self._noticed = now, False
        for stream, outlet in self._outlets.items():
            try:
                acknowledged = outlet.acknowledged()
            except Unavailable:
                continue
            emitted = self._core.streams[stream]
            emitted.acknowledged = max(min(acknowledged.values(), default=0), emitted.acknowledged)
            if not outlet.retains:  # without readers nobody is waited for
                self._core.confirm(stream, emitted.acknowledged if acknowledged else emitted.released)


def _elements(outputs: Outputs) -> list[StreamElement]:
    columns = zip(outputs.keys, outputs.bodies, strict=True)
    return [StreamElement(number, body, key) for number, (key, body) in enumerate(columns, outputs.first)]
