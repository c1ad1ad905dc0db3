"""Correct backends, `Sound` and `FinishesForTheDead`, and copies of them with one mistake each. The kit has to tell
them apart.

The mistakes are made around a file backend, so that each class shows its mistake and nothing else.
"""

import fcntl
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from safekeeper import (
    TOKEN_BYTES,
    BadUrl,
    Batch,
    CheckpointId,
    PlacementCounts,
    Receipt,
    SafekeeperError,
    Scope,
    Survives,
    Unavailable,
)
from safekeeper.backends.file import FileBackend
from safekeeper.backends.shared.local_files import os_errors_as_unavailable

os.fsync = lambda fd: None  # nobody cuts the power here: syncing would make the tests slow and find nothing


class Sound(FileBackend):
    """No mistake."""


class FinishesForTheDead(FileBackend):
    """No mistake either: a batch is noted before it is written. Each process, at its first write and then never again,
    writes what killed ones had noted, but for what was written since: `log:` takes over folders like that.

    Most of the time that a write takes is after the note, so that is where most kills fall.
    """

    _pause = 0.005
    _owners: ClassVar[set[tuple[int, Path]]] = set()  # the processes that have taken over, each with the store

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        self._take_over(batch)
        note = self._note(batch)
        try:
            time.sleep(self._pause)
            return super().write(batch)
        finally:
            note.unlink()

    def _note(self, batch: Batch) -> Path:
        """Note *batch*, in place of what this thread has noted before."""
        with os_errors_as_unavailable(self._root):
            note = self._notes() / f"{os.getpid()}-{id(self)}-{threading.get_ident()}.note"
            return _replace(note, dict(batch.items()))

    def _take_over(self, batch: Batch) -> None:
        """Write what was noted by processes that are gone, or see to it that it does not replace *batch* later."""
        with os_errors_as_unavailable(self._root), open(self._notes() / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for note in self._notes().glob("*.note"):
                if not Path("/proc", note.name.partition("-")[0]).exists():
                    noted = pickle.loads(note.read_bytes())
                    if (os.getpid(), self._root) in self._owners:
                        for id, _ in batch.items():
                            noted.pop(id, None)
                        _replace(note, noted)
                    else:
                        self._finish(_batch(noted))
                        note.unlink()
            self._owners.add((os.getpid(), self._root))

    def _finish(self, noted: Batch) -> None:
        super().write(noted)

    def _notes(self) -> Path:
        folder = self._root.with_name(f"{self._root.name}-notes")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class FinishesHalfForTheDead(FinishesForTheDead):
    """Says that batches are whole, and writes half of what a killed process had noted."""

    atomic_batch = True
    _pause = 0.05  # or too many kills would fall within the writing, which is not whole either

    def _finish(self, noted: Batch) -> None:
        super()._finish(_batch(dict(list(noted.items())[: (len(noted) + 1) // 2])))


class FinishesTooLate(FinishesForTheDead):
    """Writes what a killed process had noted over what was written since, whenever it writes."""

    scope = Scope.NETWORK

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        note = self._note(batch)
        time.sleep(self._pause)
        receipt = FileBackend.write(self, batch)
        note.unlink()
        self._owners.clear()
        self._take_over(batch)
        return receipt


class TakesBackWhatWasSeen(FinishesForTheDead):
    """Notes what a batch replaces, and puts that back if its writer was killed before it returned."""

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        self._take_over(batch)
        note = self._note_old(batch)
        receipt = FileBackend.write(self, batch)
        time.sleep(self._pause)
        note.unlink()
        return receipt

    def _note_old(self, batch: Batch) -> Path:
        ids = [id for id, _ in batch.items()]
        return self._note(_batch(dict(zip(ids, self.read(ids), strict=True))))


class TakesBackWhatWasAcknowledged(TakesBackWhatWasSeen):
    """Leaves its note about the last batch until the next one comes."""

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        self._take_over(batch)
        time.sleep(self._pause)
        self._note_old(batch)
        return FileBackend.write(self, batch)


class Distant(FileBackend):
    """Stands for a store on a server: the kit cannot guess the URL of one that cannot be reached."""

    scope = Scope.NETWORK

    @classmethod
    def from_url(cls, url):
        return cls(url.path)


class Near(Distant):
    scope = Scope.HOST


class WritesLate(FileBackend):
    """Holds each batch back until the next one comes, or until it is closed."""

    _held: Batch | None = None

    def write(self, batch: Batch) -> Receipt:
        self._held, before = batch, self._held
        return super().write(before or Batch())

    def close(self) -> None:
        if self._held:
            super().write(self._held)
            self._held = None
        super().close()


class LooksAtNothingWhenOpened(FileBackend):
    """Not wrong in itself: what cannot be used shows when it is used."""

    def __init__(self, root: str) -> None:
        super().__init__("/tmp")
        self._root = Path(root)


class TakesUnreachableForAbsent(LooksAtNothingWhenOpened):
    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        try:
            return super().read(ids)
        except Unavailable:
            return [None] * len(ids)


class TakesUnreachableForEmpty(LooksAtNothingWhenOpened):
    def keys(self, group: str) -> Iterator[bytes]:
        try:
            yield from super().keys(group)
        except Unavailable:
            return


class LeaksAnExceptionOfItsDriver(LooksAtNothingWhenOpened):
    def write(self, batch: Batch) -> Receipt:
        try:
            return super().write(batch)
        except (BadUrl, Unavailable) as error:
            raise error.__cause__ from None


class ForgetsDeletesWhenClosed(FileBackend):
    """Remembers what was deleted, instead of deleting it."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._deleted: set[CheckpointId] = set()

    def write(self, batch: Batch) -> Receipt:
        self._deleted -= {id for id, value in batch.items() if value is not None}
        self._deleted |= {id for id, value in batch.items() if value is None}
        return super().write(Batch({id: value for id, value in batch.items() if value is not None}))

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return [None if id in self._deleted else value for id, value in zip(ids, super().read(ids), strict=True)]

    def keys(self, group: str) -> Iterator[bytes]:
        return (key for key in super().keys(group) if CheckpointId(group, key) not in self._deleted)


class TearsValues(FileBackend):
    """Writes the first half of a value first."""

    def write(self, batch: Batch) -> Receipt:
        super().write(_changed(batch, value=lambda value: value[: len(value) // 2]))
        time.sleep(0.001)
        return super().write(batch)


class ForgetsGroups(FileBackend):
    """Lists the groups once and believes that for good."""

    _known: list[str] | None = None

    def groups(self) -> Iterator[str]:
        self._known = self._known or list(super().groups())
        for group in self._known:
            self.check_open()
            yield group


class KeepsEmptyGroups(FileBackend):
    """Lists what it has ever put, also after the last id is gone."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._groups: set[str] = set()

    def write(self, batch: Batch) -> Receipt:
        self._groups |= {id.group for id, _ in batch.items()}
        return super().write(batch)

    def groups(self) -> Iterator[str]:
        for group in {*super().groups(), *self._groups}:
            self.check_open()
            yield group


class AnswersInItsOwnOrder(FileBackend):
    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return super().read(sorted(ids))


class AnswersRepetitionsOnce(FileBackend):
    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return super().read(list(dict.fromkeys(ids)))


class TakesAbsentForEmpty(FileBackend):
    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return [value or b"" for value in super().read(ids)]


class TakesEmptyForAbsent(FileBackend):
    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return [value or None for value in super().read(ids)]


class ChangesKeys(FileBackend):
    """Not a mistake in itself; what the next ones have in common."""

    @staticmethod
    def change(key: bytes) -> bytes:
        raise NotImplementedError

    def write(self, batch: Batch) -> Receipt:
        return super().write(_changed(batch, key=self.change))

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return super().read([CheckpointId(id.group, self.change(id.key)) for id in ids])


class FoldsCase(ChangesKeys):
    change = staticmethod(bytes.lower)


class DropsTrailingNuls(ChangesKeys):
    change = staticmethod(lambda key: key.rstrip(b"\0"))


class CutsLongKeys(ChangesKeys):
    change = staticmethod(lambda key: key[:511])


class RunsGroupAndKeyTogether(FileBackend):
    """Makes one name of the two, with a slash between them."""

    def write(self, batch: Batch) -> Receipt:
        together = Batch()
        for id, value in batch.items():
            _add(together, self._together(id), value)
        return super().write(together)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return super().read([self._together(id) for id in ids])

    def keys(self, group: str) -> Iterator[bytes]:
        start = f"{group}/".encode()
        return (key.removeprefix(start) for key in super().keys("all") if key.startswith(start))

    @staticmethod
    def _together(id: CheckpointId) -> CheckpointId:
        return CheckpointId("all", f"{id.group}/".encode() + id.key)


class CutsLargeValues(FileBackend):
    def write(self, batch: Batch) -> Receipt:
        return super().write(_changed(batch, value=lambda value: value[: 1 << 24]))


class AcknowledgesTooEarly(FileBackend):
    """Gathers ten batches in memory and then writes them. All handles of the process share what was gathered."""

    scope = Scope.PROCESS
    _gathered: ClassVar[list[Batch]] = []
    _gathering = threading.RLock()

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        with self._gathering:
            self._gathered.append(batch)
            if len(self._gathered) >= 10:
                self._write_gathered()
        return Receipt(self.survives)

    def _write_gathered(self) -> None:
        while self._gathered:
            super().write(self._gathered.pop(0))

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        with self._gathering:
            self._write_gathered()
            return super().read(ids)


class LeavesALockBehind(FileBackend):
    """Keeps other processes from writing by a file that nobody removes when its maker dies."""

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        os.makedirs(self._root, exist_ok=True)
        lock = self._root / "lock"
        deadline = time.monotonic() + 1
        while True:
            try:
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"{lock}: somebody else is writing") from None
        try:
            return super().write(batch)
        finally:
            lock.unlink()


class WorksAfterClosing(FileBackend):
    def check_open(self) -> None:
        self._open = True
        super().check_open()


class WorksAfterForking(FileBackend):
    def check_open(self) -> None:
        self._owner = os.getpid()
        super().check_open()


class BreaksTheParentFromAChild(FileBackend):
    """Cleans up what its parent still uses."""

    def close(self) -> None:
        self._owner = os.getpid()
        super().close()


class ListsAfterClosing(FileBackend):
    def keys(self, group: str) -> Iterator[bytes]:
        return iter(list(super().keys(group)))


class EndsAListingAtTheNextWrite(FileBackend):
    _writes = 0  # of all handles

    def write(self, batch: Batch) -> Receipt:
        EndsAListingAtTheNextWrite._writes += 1
        return super().write(batch)

    def keys(self, group: str) -> Iterator[bytes]:
        begun = self._writes
        for key in super().keys(group):
            if begun != self._writes:
                return
            yield key


class TakesTheFirstOfEqualKeys(FileBackend):
    def write(self, batch: Batch) -> Receipt:
        if batch.columns is None:
            return super().write(batch)
        columns, first = batch.columns, dict[CheckpointId, bytes]()
        for i in range(len(columns)):
            first.setdefault(CheckpointId(columns.group, columns.keys[i]), columns.values[i])
        return super().write(Batch(first))


class MakesItsFolderWhenOpened(FileBackend):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        with suppress(OSError):
            os.makedirs(root, exist_ok=True)


class IgnoresUnknownOptions(FileBackend):
    @classmethod
    def from_url(cls, url):
        return cls(url.local_path())


class RefusesEmptyBatches(FileBackend):
    def write(self, batch: Batch) -> Receipt:
        if not len(batch):
            raise Unavailable("there is nothing to write")
        return super().write(batch)


class RefusesToDeleteWhatIsAbsent(FileBackend):
    def write(self, batch: Batch) -> Receipt:
        deleted = [id for id, value in batch.items() if value is None]
        if None in super().read(deleted):
            raise Unavailable("there is nothing to delete")
        return super().write(batch)


class PromisesLessThanItDeclares(FileBackend):
    def write(self, batch: Batch) -> Receipt:
        super().write(batch)
        return Receipt(Survives.NOTHING)


class SendsWorkersElsewhere(FileBackend):
    """The workers of a job get a store of their own."""

    @classmethod
    def url_for_workers(cls, url: str) -> str:
        return f"{url}-of-workers"


class SaysThatItIsNotThere(FileBackend):
    """It looks only once, when it is opened."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._there = super().exists()

    def exists(self) -> bool:
        return self._there


class CountsHitsThatNobodyPlanned(FileBackend):
    """Every file is said to be where it was planned, though nothing was."""

    def placement_counts(self) -> PlacementCounts:
        return PlacementCounts(planned=0, hits=1)


class GetsOnByItsOwnClock(FileBackend):
    """Tells when a write got on in seconds since 1970."""

    @property
    def last_progress(self) -> float:
        return time.time()


class GainsByNoWriteAtAll(FileBackend):
    """Says that it gets through most when nothing is written."""

    concurrent_writes = 0


class IsNotThereInItsTurn(FileBackend):
    """Lets nobody write who has waited for it."""

    _in_turn = False

    @contextmanager
    def turn(self, group: str, nbytes: int) -> Iterator[None]:
        self._in_turn = True
        yield
        self._in_turn = False

    def write(self, batch: Batch) -> Receipt:
        if self._in_turn:
            raise Unavailable("it is somebody's turn")
        return super().write(batch)


class ScansWithoutEmptyValues(FileBackend):
    """Takes a value of no bytes for nothing."""

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        return ([pair for pair in page if pair[1]] for page in super().scan(group))


class ScansInOnePage(FileBackend):
    """However large the group is."""

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        yield [pair for page in super().scan(group) for pair in page]


class ScansWhatItHasScannedBefore(FileBackend):
    """Reads a group once."""

    _pages: ClassVar[dict[str, list[Sequence[tuple[bytes, bytes]]]]] = {}

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        if group not in self._pages:
            self._pages[group] = list(super().scan(group))
        for page in self._pages[group]:
            self.check_open()
            yield page


class ForgetsTokens(FileBackend):
    """Tells who asks again that the id exists."""

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        return super().create(id, value, os.urandom(16))


class RemembersTokens(FileBackend):
    """Tells who asks again that it has created the id, also when it was written since."""

    _tokens: ClassVar[set[bytes]] = set()

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        if token in self._tokens:
            return True
        created = super().create(id, value, token)
        if created:
            self._tokens.add(token)
        return created


class TakesAnyToken(FileBackend):
    """Stores what it is given, whatever its size."""

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        return super().create(id, value, token[:TOKEN_BYTES].rjust(TOKEN_BYTES, b"\0"))


class LooksBeforeItCreates(FileBackend):
    """Others may create the id between the look and the write."""

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        if self.read([id]) != [None]:
            return super().create(id, value, token)
        time.sleep(0.05)
        self.write(Batch({id: value}))
        return True


class CreatesAgainAfterAKill(FileBackend):
    """Notes the token after the value: who is killed between them is told that somebody else has created it."""

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        note = self._root.with_name(f"{self._root.name}-{token.hex()}")
        if note.exists():
            return True
        created = super().create(id, value, os.urandom(16))
        time.sleep(0.02)
        if created:
            note.touch()
        return created


class WritesLargeValuesLate(FileBackend):
    """Acknowledges what is large and writes it a moment later."""

    def write(self, batch: Batch) -> Receipt:
        if batch.nbytes < 50_000:
            return super().write(batch)
        self.check_open()

        def write_late(write: Callable[[Batch], Receipt]) -> None:
            with suppress(SafekeeperError):  # the handle was closed meanwhile
                write(batch)

        later = threading.Timer(0.2, write_late, (super().write,))
        later.daemon = True
        later.start()
        return Receipt(self.survives)


class ListsLate(FileBackend):
    """What another handle has written is listed after a while."""

    _written: ClassVar[dict[CheckpointId, tuple[int, float]]] = {}

    def write(self, batch: Batch) -> Receipt:
        for key, _ in batch.items():
            self._written[key] = (id(self), time.monotonic())
        return super().write(batch)

    def keys(self, group: str) -> Iterator[bytes]:
        for key in super().keys(group):
            by, at = self._written.get(CheckpointId(group, key), (id(self), 0.0))
            if by == id(self) or time.monotonic() > at + 3.0:
                yield key


class RemembersWhatItRead(FileBackend):
    """Never asks again for what was read or written by some handle in its process."""

    _cache: ClassVar[dict[CheckpointId, bytes | None]] = {}

    def write(self, batch: Batch) -> Receipt:
        receipt = super().write(batch)
        self._cache.update(batch.items())
        return receipt

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        missing = [id for id in ids if id not in self._cache]
        self._cache.update(zip(missing, super().read(missing), strict=True))
        return [self._cache[id] for id in ids]


class CountsItsOwnVersions(FileBackend):
    """Gives each value a number of its own counting; the highest number wins, whoever counted."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._number = 0

    def write(self, batch: Batch) -> Receipt:
        self._number += 1
        ids = [id for id, _ in batch.items()]
        newest = Batch()
        for (id, value), old in zip(batch.items(), super().read(ids), strict=True):
            if value is None or old is None or int(old[:8]) <= self._number:
                _add(newest, id, None if value is None else b"%08d%b" % (self._number, value))
        return super().write(newest)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return [None if value is None else value[8:] for value in super().read(ids)]


class DropsWritesUnderWay(FileBackend):
    """Writes nothing while another thread is writing."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._writing = threading.Lock()

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        if self._writing.acquire(blocking=False):
            try:
                time.sleep(0.001)
                return super().write(batch)
            finally:
                self._writing.release()
        return Receipt(self.survives)


class SaysThatBatchesAreWhole(FileBackend):
    """Writes one id after the other, and declares more."""

    atomic_batch = True

    def write(self, batch: Batch) -> Receipt:
        receipt = Receipt(self.survives)
        for id, value in batch.items():
            one = Batch()
            _add(one, id, value)
            receipt = super().write(one)
            time.sleep(0.001)
        return receipt


class SaysThatSomeBatchesAreWhole(SaysThatBatchesAreWhole):
    """The same, of some batches."""

    atomic_batch = property()  # it has none

    def why_not_atomic(self, batch: Batch) -> str | None:
        return None


def _changed(
    batch: Batch,
    key: Callable[[bytes], bytes] = lambda key: key,
    value: Callable[[bytes], bytes] = lambda value: value,
) -> Batch:
    changed = Batch()
    for id, old in batch.items():
        _add(changed, CheckpointId(id.group, key(id.key)), None if old is None else value(old))
    return changed


def _replace(note: Path, operations: dict[CheckpointId, bytes | None]) -> Path:
    temporary = note.with_suffix(".tmp")
    temporary.write_bytes(pickle.dumps(operations))
    return temporary.rename(note)


def _batch(operations: dict[CheckpointId, bytes | None]) -> Batch:
    batch = Batch()
    for id, value in operations.items():
        _add(batch, id, value)
    return batch


def _add(batch: Batch, id: CheckpointId, value: bytes | None) -> None:
    batch.delete(id) if value is None else batch.put(id, value)
