"""The contract between everything that keeps checkpoints and everything that stores them.

A backend stores bytes under ids and makes them durable. It knows nothing of queues, serializers or Spark; whoever is
above it knows nothing of files and servers. The docstrings here are the rules; `safekeeper.testing.BackendContract`
checks them, and `docs/writing-a-backend.md` walks through a whole backend.

The rules that hold for the contract as a whole:

- **Atomicity is per id.** After any crash, and to any reader, an id has its old value whole or its new value whole. A
  batch as a whole may be seen half done, unless the backend says otherwise (`SupportsAtomicBatch`).
- **Order.** A write that starts after another one returned wins. Of two that overlap, either may win, whole.
- **Threads and forks.** Any method may be called from any thread at any time. In a child made by `fork`, every method
  of an inherited handle but `close` raises `Closed`; the parent does not notice.
- **Size.** `CheckpointId` and `Batch` refuse what is over the limits below, so a backend never sees it. A store with
  smaller limits hides them: it splits values and hashes keys, and its callers cannot tell.
- **Errors.** Only `SafekeeperError`s come out. Nothing is skipped in silence.
"""

from __future__ import annotations

import enum
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

from safekeeper.errors import BadId, Closed, TooLarge, one_line

if TYPE_CHECKING:
    from types import TracebackType

    from safekeeper.columns import Columns
    from safekeeper.url import Url

MAX_GROUP_BYTES = 255
"""A group has 1 to this many bytes of UTF-8."""

MAX_KEY_BYTES = 32 * 1024
"""A key has 0 to this many bytes."""

MAX_VALUE_BYTES = 64 * 1024 * 1024
"""A value has 0 to this many bytes. Larger ones are written in parts: see `safekeeper.large`."""


TOKEN_BYTES = 16
"""What `SupportsCreate.create` tells attempts apart by has this many bytes, all random."""


class Survives(enum.Flag):
    """The failures after which an acknowledged write is still there.

    A set, not a scale: a value replicated in memory only survives `HOST` but not `POWER`. A flag is set when that
    failure may happen anywhere on the path of the write, in the caller, a server or between them.
    """

    NOTHING = 0
    PROCESS = enum.auto()
    """Any one process killed, the caller's or a server's."""
    OS = enum.auto()
    """One kernel crashed or rebooted without warning."""
    POWER = enum.auto()
    """All hosts without power at the same moment."""
    HOST = enum.auto()
    """One host lost for good, with its disks."""


class Scope(enum.IntEnum):
    """Who sees the writes besides the handle that made them; each scope includes the ones before it."""

    PROCESS = 1
    """Other handles in the same process."""
    HOST = 2
    """Other processes on the same host."""
    NETWORK = 3
    """Other hosts."""


class _Id(NamedTuple):
    group: str
    key: bytes


class CheckpointId(_Id):
    """The name of one element of state. An id that exists is valid: the limits are checked here and nowhere else.

    *group* is what it is one of: `WordCounter`, or one partition of a Spark store. 1 to 255 bytes of UTF-8, no control
    characters. *key* is which one: `b"foo"`, or one Spark commit. Any bytes, also none, up to `MAX_KEY_BYTES`; a str
    stands for its UTF-8.
    """

    # A tuple: ids are hashed and compared several times on the way of every save, and tuples do that in C.
    __slots__ = ()

    def __new__(cls, group: str, key: bytes | str) -> Self:
        """Raise `BadId` or `TooLarge` if there can be no such id."""
        if type(group) is not str:
            raise BadId(f"a group is a str, not {type(group).__name__}: decode it first")
        check_group(group)
        if type(key) is str:
            try:
                key = key.encode()
            except UnicodeEncodeError:
                key = as_key(key)  # it raises
        elif type(key) is not bytes:
            raise BadId(f"a key is bytes or str, not {type(key).__name__}: encode it first")
        if len(key) > MAX_KEY_BYTES:
            raise TooLarge(f"a key has at most {MAX_KEY_BYTES} bytes, this one has {len(key)}: shorten or hash it")
        return tuple.__new__(cls, (group, key))

    def __getnewargs__(self) -> tuple[str, bytes]:
        return (self.group, self.key)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
        return cls(*iterable)

    def __str__(self) -> str:
        """The id for messages and log lines: not too long, and printable whatever its bytes are."""
        key = self.key if len(self.key) <= 80 else self.key[:77] + b"..."
        return one_line(f"{self.group}/{key.decode('utf-8', 'backslashreplace')}")


def as_key(key: bytes | str) -> bytes:
    """*key* as bytes: a str stands for its UTF-8. Raise `BadId` if it has none."""
    if not isinstance(key, str):
        return key
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise BadId(f"the key {key!r:.100} has no UTF-8 form: {error.reason}: give bytes") from error


@lru_cache(maxsize=4096)
def check_group(group: str) -> None:
    """Raise `BadId` unless *group* can be the group of an id."""
    try:
        size = len(group.encode())
    except UnicodeEncodeError as error:
        raise BadId(f"the group {group!r} has no UTF-8 form: {error.reason}") from error
    if not 1 <= size <= MAX_GROUP_BYTES:
        raise BadId(f"a group has 1 to {MAX_GROUP_BYTES} bytes of UTF-8, {group[:40]!r} has {size}")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in group):
        raise BadId(f"a group has no control characters, {group!r} has one")


def check_value(id: CheckpointId, value: bytes) -> None:
    """Raise `TooLarge` if *value* has too many bytes for a value."""
    if len(value) > MAX_VALUE_BYTES:
        raise TooLarge(f"{id}: a value has at most {MAX_VALUE_BYTES} bytes, this one has {len(value)}: split it")


def check_creation(id: CheckpointId, value: bytes, token: bytes) -> None:
    """Raise `TooLarge` or `ValueError` if `create` cannot take this. Every backend that has `create` begins with it."""
    check_value(id, value)
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"{id}: a token has {TOKEN_BYTES} bytes, this one has {len(token)}: take secrets.token_bytes")


class Batch:
    """What is written together: puts and deletes. A batch holds an id once; the last operation on it counts.

        batch = Batch()
        batch.put(CheckpointId("WordCounter", b"foo"), b"41")
        batch.delete(CheckpointId("WordCounter", b"bar"))
        backend.write(batch)

    Bulk data that is already laid out as Arrow columns goes in as it is, with `Batch.of_columns`. Such a batch takes no
    single operations. A backend without a bulk path of its own sees no difference: `items` goes over both kinds.
    """

    __slots__ = ("_operations", "columns", "nbytes")

    def __init__(self, puts: Mapping[CheckpointId, bytes] | None = None) -> None:
        self._operations: dict[CheckpointId, bytes | None] = {}
        self.columns: Columns | None = None
        """The columns of a bulk batch, else None."""
        self.nbytes = 0
        """How many bytes of keys and values the batch holds."""
        for id, value in (puts or {}).items():
            self.put(id, value)

    @classmethod
    def of_columns(cls, columns: Columns) -> Self:
        """A batch of puts given as columns. Where a key stands twice, the last one counts."""
        batch = cls()
        batch.columns = columns
        batch.nbytes = columns.nbytes
        return batch

    @classmethod
    def of_different(cls, operations: dict[CheckpointId, bytes | None], nbytes: int) -> Self:
        """A batch of all these values, and of a delete where there is None; nobody changes *operations* any more. The
        values are within the limits, and they and their keys have *nbytes*: the caller has seen to both."""
        batch = cls()
        batch._operations, batch.nbytes = operations, nbytes
        return batch

    def put(self, id: CheckpointId, value: bytes) -> None:
        """Set *id* to *value*, whether or not it exists."""
        if type(value) is not bytes:
            raise TypeError(f"a value is bytes, not {type(value).__name__}: serialize it first")
        check_value(id, value)
        self._set(id, value, len(value))

    def delete(self, id: CheckpointId) -> None:
        """Remove *id*. That it does not exist is not an error."""
        self._set(id, None, 0)

    def _set(self, id: CheckpointId, value: bytes | None, size: int) -> None:
        if self.columns is not None:
            raise TypeError("a batch of columns takes no single operations: write them as a batch of their own")
        operations = self._operations
        if id in operations:
            self.nbytes -= len(id.key) + len(operations.pop(id) or b"")
        operations[id] = value
        self.nbytes += len(id.key) + size

    def items(self) -> Iterable[tuple[CheckpointId, bytes | None]]:
        """Every id with its value, or with None where it is to be deleted; each id once."""
        return self._operations.items() if self.columns is None else self.columns.items()

    def __len__(self) -> int:
        return len(self._operations) if self.columns is None else len(self.columns)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} operations, {self.nbytes} bytes>"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What `Backend.write` promises by returning."""

    survives: Survives
    """What this write survives."""
    sync_seconds: float = 0.0
    """How long the store took to make it durable, where it can tell that from the rest; for measuring."""


class Backend(ABC):
    """A place that keeps bytes under ids. Open one with `safekeeper.open(url)` and use it in a `with` block.

    Opening writes nothing and takes nothing from others, so a store that somebody else is writing can always be read;
    a store that does not exist yet is empty.
    """

    survives: Survives
    """What an acknowledged write survives. What cannot be asked of a server is not declared."""
    asserted: Survives = Survives.NOTHING
    """The part of `survives` that was not found out but declared by `?assert=` in the URL."""
    scope: Scope
    """Who sees the writes besides this handle."""

    _open = True
    _shown = ""  # the URL that it was opened by, without a password

    def __init__(self) -> None:
        self._owner = os.getpid()

    @classmethod
    @abstractmethod
    def from_url(cls, url: Url) -> Self:
        """Open the store that *url* names, without writing to it. Raise `BadUrl` when it makes no sense."""

    @abstractmethod
    def write(self, batch: Batch) -> Receipt:
        """Make *batch* durable, each id whole or not at all.

        Writing an id that exists replaces it; deleting an id that does not exist is not an error, nor is an empty
        batch. When this returns, the batch survives what `survives` declares and every later `read` in `scope` sees it.
        When it raises `Unavailable`, any part of the batch may or may not have been written, and writing it again is
        safe. It cannot happen any more once a later write of the same id has returned.
        """

    @abstractmethod
    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """The values of *ids*, in their order; None where there is none.

        An id may be asked for twice. A store that cannot be reached raises `Unavailable`, one whose bytes are damaged
        raises `Corruption`; neither ever looks like an absent id.
        """

    @abstractmethod
    def keys(self, group: str) -> Iterator[bytes]:
        """The keys of *group*, in any order.

        A key that is there from the first step to the last is yielded, perhaps twice; one that comes or goes meanwhile
        may or may not be. A group that does not exist has no keys. The cost is in proportion to the group, never to
        the store, and values are not fetched.
        """

    @abstractmethod
    def groups(self) -> Iterator[str]:
        """The groups that have at least one id, in any order, perhaps twice. Writes meanwhile count as in `keys`."""

    def close(self) -> None:
        """Give back what the handle holds. Everything acknowledged stays. Closing twice is not an error."""
        self._open = False

    def check_open(self) -> None:
        """Raise `Closed` if the handle was closed or came here through a fork. For backends, at the start of each
        method and at each step of an iterator."""
        if not self._open:
            raise Closed(f"this {type(self).__name__} was closed: open a new one")
        if self._owner != os.getpid():
            raise Closed(f"this {type(self).__name__} belongs to process {self._owner}: open a new one after a fork")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self._shown}{'' if self._open else ', closed'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class SupportsAtomicBatch(Protocol):
    """A backend whose batches are whole or absent after a crash and to every reader, not only each id."""

    atomic_batch: bool
    """True; there is nothing to call."""


@runtime_checkable
class SupportsSomeAtomicBatches(Protocol):
    """A backend without `SupportsAtomicBatch` that keeps some batches whole all the same."""

    def why_not_atomic(self, batch: Batch) -> str | None:
        """None if *batch*, written by itself, is whole or absent after a crash and to whoever reads its ids in one
        call; else why it is not and which one would be, in one line. This asks no server.
        """


@runtime_checkable
class SupportsScan(Protocol):
    """A backend that can read a whole group in one pass, quicker than by its keys."""

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """The keys of *group* with their values, in any order, in pages whose size is bounded whatever the group is.

        Which keys are yielded is as in `keys`; each with a value that it had between the first step and the last.
        Damage raises `Corruption`.
        """


@runtime_checkable
class SupportsCreate(Protocol):
    """A backend that can store a value only where there is none, and only once."""

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """Store *value* under *id* if the id is absent, as durably as `write`; whether it is what stands there now.

        Of several calls at once, whoever in `scope` makes them, one stores its value. *token* has `TOKEN_BYTES` bytes
        and names the attempt: a caller that got no answer, or was killed, asks again with the same token, and True
        says that its own value is there. The token is forgotten when the id is written or deleted. After `Unavailable`
        the value may still be stored, until a later write of the id has returned.
        """


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did."""

    bytes_before: int
    bytes_after: int


@runtime_checkable
class SupportsCompaction(Protocol):
    """A backend that can give back the space of replaced and deleted values."""

    def compact(self) -> Compaction:
        """Give back what can be given back now. Reads and writes go on meanwhile."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a store holds, as far as it can tell without reading every value."""

    ids: int
    bytes_stored: int
    """What it occupies, dead values included."""
    details: Mapping[str, int | float | str] = field(default_factory=dict)
    """What is worth knowing about this kind of store: segments, fragmentation, server version."""


@runtime_checkable
class SupportsStats(Protocol):
    """A backend that can describe what it holds."""

    def stats(self) -> Stats:
        """The numbers now."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place in a store."""

    place: str
    """File and offset, row or key: where to look."""
    problem: str
    id: CheckpointId | None = None
    """The id whose value is lost, where that is known."""


@dataclass(frozen=True, slots=True)
class Intact:
    """One value of a damaged store that can be trusted."""

    id: CheckpointId
    value: bytes


@runtime_checkable
class SupportsExists(Protocol):
    """A backend that can tell a store that is not there from one that is empty."""

    def exists(self) -> bool:
        """Whether there is a store: False before the first write, so also for a path that was mistyped."""


@runtime_checkable
class SupportsSalvage(Protocol):
    """A backend that can tell what is left of a store which is too damaged to be read id by id."""

    def salvage(self, checked: Callable[[int], object]) -> Iterator[Intact | Damage]:
        """Every id whose last value is intact, and what is lost; the store itself is not changed.

        An id whose last value is damaged is lost: no older value takes its place. *checked* is as in `verify`.
        """


@runtime_checkable
class SupportsVerify(Protocol):
    """A backend that can check itself more thoroughly than by reading every id."""

    def verify(self, checked: Callable[[int], object]) -> Iterator[Damage]:
        """Read and check everything that is stored; yield what is damaged, nothing if all is well.

        *checked* is called now and then with the number of bytes read since the last call: for a progress line.
        """


@dataclass(frozen=True, slots=True)
class PlacementCounts:
    """What became of the files that a backend has created."""

    planned: int = 0
    """Created with a plan of which servers they should be on."""
    hits: int = 0
    """Of these, those that are on just these servers."""
    in_order: int = 0
    """Of these, those that reached them in the planned order, too."""
    unplanned: int = 0
    """Left to the store."""

    @property
    def hit_rate(self) -> float:
        """The part of the planned files that went where they were planned; 1 where nothing was planned."""
        return self.hits / self.planned if self.planned else 1.0


@runtime_checkable
class SupportsPlacement(Protocol):
    """A backend that has a say in which servers its files are on."""

    def placement_counts(self) -> PlacementCounts:
        """What became of the files so far."""


@runtime_checkable
class SupportsProgress(Protocol):
    """A backend whose writes may take long, and that shows whether they get on.

    A keeper fails a save after some time without progress. Whenever a batch was acknowledged, that is progress; what
    happens inside of a `write` only the backend can tell: a part of a large value was sent, a server that has to be
    waited for gave a sign of life.
    """

    last_progress: float
    """When a write of this handle last got on, in the time of `time.monotonic`. Reading it waits for nothing."""


@runtime_checkable
class SupportsConcurrentWrites(Protocol):
    """A backend that gets through more when several batches are written at once than when they are one batch."""

    concurrent_writes: int
    """How many `write`s under way at once it gains by, 1 or more; more of them do no harm."""


def concurrent_writes(backend: Backend) -> int:
    """How many writes *backend* gains by having under way at once; 1 for most."""
    return backend.concurrent_writes if isinstance(backend, SupportsConcurrentWrites) else 1


@runtime_checkable
class SupportsTurns(Protocol):
    """A backend that says when large values may be written."""

    def turn(self, group: str, nbytes: int) -> AbstractContextManager[None]:
        """Wait until about *nbytes* of *group* may be written; they have their turn while the block lasts.

        What this handle writes of *group* meanwhile, in any thread, uses it and does not wait for another one; what is
        more than was asked for does. Writing less, or nothing, is not an error. It never waits for ever.
        """


def turn_of(backend: Backend, group: str, nbytes: int) -> AbstractContextManager[None]:
    """The turn of *backend*; at once where it gives none."""
    return backend.turn(group, nbytes) if isinstance(backend, SupportsTurns) else nullcontext()


@runtime_checkable
class SupportsAnnouncement(Protocol):
    """A backend that plans better when it knows how much is coming."""

    def announced(self, group: str, nbytes: int) -> AbstractContextManager[None]:
        """Tell that about *nbytes* of *group* are written while the block lasts, in several batches. It does not wait;
        what `SupportsTurns.turn` has waited for counts. Writing more, less or nothing is not an error."""


def announced_to(backend: Backend, group: str, nbytes: int) -> AbstractContextManager[None]:
    """Tell *backend* what is coming, if it wants to know."""
    return backend.announced(group, nbytes) if isinstance(backend, SupportsAnnouncement) else nullcontext()


@runtime_checkable
class SupportsUrlOptions(Protocol):
    """A backend class that says which options its URL takes, for `safekeeper backends NAME` and `docs/backends.md`."""

    url_options: Sequence[type]
    """The dataclasses that `from_url` gives to `Url.options`, with a docstring under each field. Where the URL decides
    which one that is, the general one is first."""


@runtime_checkable
class SupportsWorkers(Protocol):
    """A backend class that must do something before the workers of a distributed job open its stores."""

    @classmethod
    def url_for_workers(cls, url: str) -> str:
        """The URL that the workers are to open instead of *url*.

        What they need besides the store runs in this process from now on, until it ends. The result may hold a
        password.
        """
