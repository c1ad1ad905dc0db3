"""The contract of streams: elements with numbers, one side that sends them, one that reads them.

A **stream** is a sequence of elements that are numbered 1, 2, 3 and so on, without gaps. Its producer names its
**readers**; an element is retained until each of them has acknowledged it, cumulatively. Numbers make delivery
exactly once: an element that is sent again has its old number, and the stream has it once. What carries a stream, Redis
or a store or a connection, is its **carrier**; `safekeeper.testing.StreamContract` checks one.

The rules that hold for the contract as a whole:

- **Once and in order.** A reader gets each number once, in order, whatever was sent again and whoever was killed
  meanwhile.
- **One producer.** Only one sends at a time. One that was stopped and comes back beside its successor does no harm, as
  long as both send the same bytes under a number; an operator with `release="durable"` does.
- **No gap in silence.** What is missing raises `Gone`; a reader never steps over it.
- **Sending again is safe.** After an `Unavailable`, and after a restart, a producer sends from where it knows that
  everything arrived; what the stream has already is dropped.
- **Threads.** Any method may be called from any thread. `close` ends a `read` that waits in another one, with `Closed`.
- **Errors.** Only `SafekeeperError`s come out, each in one line.

A stream that somebody else produces has whatever numbers they gave: there a position is a tuple of ints where one int
is not enough. Positions of one stream are all of one kind and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

Position: TypeAlias = int | tuple[int, ...]
"""Where a reader is in a stream: after the element with this number; 0, or a tuple of zeros, before the first one."""


@dataclass(frozen=True, slots=True)
class StreamElement:
    """One element of a stream."""

    number: Position
    """Its place. 1, 2, 3 and so on in a stream of ours."""
    body: bytes
    key: bytes = b""
    """Which part of an operator's state it concerns; b"" where that does not matter."""


class Outlet(Protocol):
    """The producing side of a stream. Open one with `safekeeper.streams.open_outlet(url, readers=[...])`."""

    @property
    def retains(self) -> bool:
        """Whether the carrier keeps what `send` has confirmed until every reader has acknowledged it, also when one of
        its processes is killed. If not, the producer must be able to send again whatever is not acknowledged: an
        operator's blocks keep it. Ask after a send: a server's settings may have changed."""

    @property
    def last(self) -> int:
        """The number of the last element that the stream has, as far as is known here; 0 if it never had one."""

    def send(self, elements: Sequence[StreamElement]) -> None:
        """Append *elements*; when this returns the stream has them, in order and once.

        Their numbers follow one another without a gap. Those that the stream has already are dropped; the rest begins
        right after `last`. `ValueError` if there is a gap in *elements*, `Gone` if there is one between the stream and
        them: then the carrier has lost elements that it had confirmed, and nothing is sent. After `Unavailable` some of
        them may have arrived: send the same again. `QueueFull` if a reader is too far behind: nothing is sent.
        """

    def acknowledged(self) -> Mapping[str, int]:
        """How far each declared reader has acknowledged, 0 where it has not yet begun. What all of them have
        acknowledged is given back to the carrier. This may ask a server, so once for many elements is enough."""

    def close(self) -> None:
        """Give back what is held here. The stream stays. Closing twice is not an error."""


@runtime_checkable
class SupportsNotice(Protocol):
    """An outlet that learns of acknowledgements by itself, so that nobody need ask."""

    def on_acknowledged(self, call: Callable[[], object]) -> None:
        """Have *call* called, in any thread, whenever a reader has acknowledged more than before."""


Fetch: TypeAlias = Callable[[int, int], "Sequence[StreamElement]"]
"""Gives the elements after a number, so many or some of them; none if nobody is waited for with them any more."""


@runtime_checkable
class SupportsSpill(Protocol):
    """An outlet that retains in memory, and can do with less where somebody else has the elements, too."""

    def spill(self, upto: int, fetch: Fetch) -> None:
        """Forget the elements up to *upto*: whoever wants them gets them by *fetch*, which may be called in any thread
        and may raise `Unavailable`. If the outlet never had them, it goes on after them."""


@runtime_checkable
class SupportsEpoch(Protocol):
    """An outlet whose readers can tell a producer from its successor."""

    def begin_epoch(self, epoch: int) -> None:
        """Say which claim the producer has; readers take nothing from one with a lower claim than they have seen."""


class Inlet(Protocol):
    """The reading side. Open one with `safekeeper.streams.open_inlet(url, reader=..., after=...)`."""

    def read(self, timeout: float | None = None) -> Sequence[StreamElement]:
        """The next elements, in order: as many as are there, within reason.

        It waits until there is one, for *timeout* seconds at most (0: not at all); then it returns none, which says
        nothing about the stream's end, since a stream has none. After `Unavailable`, read again.
        """

    def acknowledge(self, upto: Position) -> None:
        """Say that everything up to *upto* has been dealt with for good, so that nobody need retain it for this reader.

        It is cumulative and never goes back: an older one than before is not an error and does nothing.
        """

    def last(self) -> Position | None:
        """The number of the last element that the stream has, whether or not it was read; None if it never had one."""

    def close(self) -> None:
        """Give back what is held here. What was read and not acknowledged comes again. Closing twice is no error."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """What a carrier knows about one of its streams."""

    name: str
    first: Position | None
    """The oldest element that is retained; None if none is."""
    last: Position | None
    """The newest that it ever had; None if it had none."""
    readers: Mapping[str, Position] = field(default_factory=dict)
    """How far each of its readers has acknowledged."""


class Carrier(Protocol):
    """What serves one scheme of stream URLs: a module or an object with these two functions."""

    def open_outlet(self, url: str, readers: Sequence[str], floor: int) -> Outlet:
        """Open the producing side and declare its *readers*, which have acknowledged everything up to *floor*.

        A carrier that has lost its elements may go on after that. Raise `BadUrl` when the URL makes no sense.
        """

    def open_inlet(self, url: str, reader: str | None, after: Position | None) -> Inlet:
        """Open the reading side as *reader*, None for somebody who only looks, after a position.

        Without a position it begins after what the reader has acknowledged.
        """


@runtime_checkable
class SupportsSurvey(Protocol):
    """A carrier whose streams can be looked at and trimmed from outside."""

    def survey(self, url: str) -> Iterator[StreamStatus]:
        """The streams at *url*, or the one that it names."""

    def trim(self, url: str, upto: Position) -> None:
        """Forget the elements up to *upto*, whoever has not read them. The stream goes on with its numbers."""
