"""What is in a store, as one process sees it: the segments, their index, and reading from them.

Every `refresh` lists the segments and reads what is new in them: of those that are complete the contents, once; of
those that others are writing whatever became visible since. After it the index knows every write that had returned
when it began, anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Final, TypeVar

from safekeeper.backend import MAX_VALUE_BYTES, TOKEN_BYTES, CheckpointId, Survives
from safekeeper.backends.hdfs.chunks import read_chunks
from safekeeper.backends.hdfs.client import Client, FileStatus, locate
from safekeeper.backends.hdfs.errors import Missing
from safekeeper.backends.hdfs.index import HdfsIndex
from safekeeper.backends.hdfs.layout import HdfsLargeValue, RecordLocation, open_record
from safekeeper.backends.hdfs.options import HdfsFolder, HdfsOptions, settings_of
from safekeeper.backends.hdfs.segments import HdfsSegment
from safekeeper.backends.shared.server_clock import now
from safekeeper.errors import Closed, Corruption, Unavailable

_RUN_BYTES: Final = 4 << 20  # read at once at most, unless one record is larger
_RUN_GAP: Final = 16 << 10  # cheaper to read than to skip
_PAGE_BYTES: Final = 16 << 20
_PAGE_RECORDS: Final = 16 << 10
_LARGE_PAGE_BYTES: Final = MAX_VALUE_BYTES
_HEADS: Final = 64  # of large values, read at once to know their sizes
_TRIES: Final = 5  # how often files may vanish under a reader before it gives up

T = TypeVar("T")
R = TypeVar("R")


def survives_on(replication: int, sync: str, highly_available: bool) -> Survives:
    """What a write survives that so many DataNodes have acknowledged.

    A host takes its disks with it: where there is one NameNode, all names are on one host, however many replicas.
    """
    flags = Survives.PROCESS
    if sync == "hsync":
        flags |= Survives.OS | Survives.POWER
    elif replication > 1:
        flags |= Survives.OS
    if replication > 1 and highly_available:
        flags |= Survives.HOST
    return flags


class HdfsStore:
    """One root, for all handles of this process that have the same options."""

    def __init__(self, folder: HdfsFolder, options: HdfsOptions) -> None:
        self.options = options
        settings = settings_of(options)
        uri, root = locate(folder.uri, folder.root, settings, folder.user)
        self.folder = folder = replace(folder, uri=uri, root=root)
        self.client = Client(uri, settings, folder.user)
        try:
            self.replication = options.replication or self.client.default_replication()
            self.highly_available = self.client.is_highly_available()
            self._in_memory = dict.fromkeys(("segments", "chunks"), self.client.may_stay_in_memory(folder.root))
        except BaseException:
            self.client.close()
            raise
        self.index = HdfsIndex()
        self.lock = Lock()
        """Guards the index and the segments."""
        self.segments: dict[int, HdfsSegment] = {}
        """What is known, by the file's id."""
        self.own: set[HdfsSegment] = set()
        """Those that this process is writing: its writer tells the index."""
        self.looked_at = 0
        """When it last began to look who else is writing."""
        self.alone_at = 0
        """When it last began to look and saw that nobody else was; 0 if somebody was the last time."""
        self._loaded: set[bool] = set()
        """Which kinds of segments were read, open and complete ones. The first of each is read alone: JPype was seen
        to crash, once, in a process whose threads may all have called something for the first time."""
        self._refreshing = Lock()
        self._begun = self._done = 0
        self._readers = ThreadPoolExecutor(options.workers, "safekeeper-hdfs-read")

    def path(self, *names: str) -> str:
        """The path of something below the root."""
        return "/".join([self.folder.root, *names])

    # --- what a write survives ----------------------------------------------------------------------------------------

    def check_policy(self, kind: str, path: str) -> None:
        """Learn where HDFS keeps what is written from now on to *path*, a new segment or the folder of chunks."""
        self._in_memory[kind] = True  # what cannot be asked is not declared
        with suppress(Unavailable):
            self._in_memory[kind] = self.client.may_stay_in_memory(path)

    @property
    def survives(self) -> Survives:
        """What a write survives that enough DataNodes have acknowledged, by what was last seen of the cluster."""
        flags = survives_on(self.replication, self.options.sync, self.highly_available)
        return flags & ~(Survives.OS | Survives.POWER) if any(self._in_memory.values()) else flags

    # --- catching up --------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Learn of everything that was acknowledged before this was called."""
        asked = self._begun
        with self._refreshing:
            if self._done > asked:  # somebody else's, which began after we asked
                return
            self._begun = number = self._begun + 1
            self._catch_up()
            self._done = number

    def _catch_up(self) -> None:
        for _ in range(_TRIES):
            with self.lock:
                known = set(self.segments)
            with suppress(Missing):  # a compaction has moved it: list again
                return self._catch_up_with(self.look(), known)
        raise Unavailable(
            f"{self.folder}: segments vanish faster than they can be read: too many compactions, try again"
        )

    def look(self) -> list[FileStatus]:
        """The segments that are there, and with them who is writing."""
        looked_at = now()
        listing = self.client.listing(self.path("segments")) or []
        self.looked_at, self.alone_at = looked_at, looked_at if self.is_alone(listing) else 0
        return listing

    def exists(self) -> bool:
        """Whether anybody has written here."""
        return self.client.listing(self.path("segments"), of_one_moment=False) is not None

    def is_alone(self, listing: list[FileStatus]) -> bool:
        """Whether nobody else has a segment open in *listing*."""
        with self.lock:
            own = {segment.file_id for segment in self.own}
        return all(status.file_id in own for status in listing if status.is_open)

    def _catch_up_with(self, listing: list[FileStatus], known: set[int]) -> None:
        """Read what is new in the *listing*. What was *known* before it and is not in it is gone."""
        with self.lock:
            behind = [(self._segment(status), status) for status in listing]
            behind = [
                (segment, status) for segment, status in behind if segment not in self.own and not segment.complete
            ]
        for is_open in {status.is_open for _, status in behind} - self._loaded:
            alone = next(one for one in behind if one[1].is_open == is_open)
            self._load(alone)
            self._loaded.add(is_open)
            behind.remove(alone)
        self.in_parallel(self._load, behind)
        gone = known - {status.file_id for status in listing}
        if gone:
            with self.lock:
                for file_id in gone:
                    del self.segments[file_id]
                self.index.forget_files(gone)

    def _load(self, behind: tuple[HdfsSegment, FileStatus]) -> None:
        """Take in what is new in one segment, whatever becomes of the others: it is not found a second time."""
        segment, status = behind
        found = segment.load(status)
        with self.lock:
            self.index.add(found)

    def _segment(self, status: FileStatus) -> HdfsSegment:
        segment = self.segments.get(status.file_id)
        if segment is None:
            path = self.path("segments", status.name)
            segment = self.segments[status.file_id] = HdfsSegment(self.client, path, status.file_id)
        return segment

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """The values of *ids*, as of now or later."""
        self.refresh()
        found: dict[CheckpointId, RecordLocation] = {}
        for _ in range(_TRIES):
            before, found = found, self._find(ids)
            try:
                values = self._fetch(found)
                return [values.get(id) for id in ids]
            except Unavailable:
                if found == before:  # it is still there and cannot be read
                    raise
                self.refresh()  # perhaps it was moved or replaced
        raise Unavailable(f"{self.folder}: values move faster than they can be read: try again")

    def scan(self, group: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """The keys of *group* with their values, in the order of the segments, but the large ones last."""
        self.refresh()
        with self.lock:
            found = self.index.values(group)
        found.sort(key=lambda one: (one[1].is_head, one[1].file_id, one[1].offset))
        page: list[tuple[bytes, RecordLocation]] = []
        size = 0
        small = [one for one in found if not one[1].is_head]
        for key, location in small:
            page.append((key, location))
            size += location.size
            if size >= _PAGE_BYTES or len(page) == _PAGE_RECORDS:
                yield self._page(group, page)
                page, size = [], 0
        if page:
            yield self._page(group, page)
        for page in self._pages_of_large(found[len(small) :]):
            yield self._page(group, page)

    def _pages_of_large(
        self, found: list[tuple[bytes, RecordLocation]]
    ) -> Iterator[list[tuple[bytes, RecordLocation]]]:
        """As many large values at once as have chunks enough for all threads, but not too many bytes."""
        for start in range(0, len(found), _HEADS):
            some = found[start : start + _HEADS]
            page: list[tuple[bytes, RecordLocation]] = []
            size = 0
            for one, bytes_of_it in zip(some, self._sizes([location for _, location in some]), strict=True):
                if page and size + bytes_of_it > _LARGE_PAGE_BYTES:
                    yield page
                    page, size = [], 0
                page.append(one)
                size += bytes_of_it
            yield page

    def _sizes(self, locations: list[RecordLocation]) -> list[int]:
        """How large the values are whose heads are there; as large as can be, where one has just been moved."""
        try:
            return [head.size for head in self.heads(locations)]
        except Unavailable:
            return [MAX_VALUE_BYTES] * len(locations)

    def _page(self, group: str, found: list[tuple[bytes, RecordLocation]]) -> list[tuple[bytes, bytes]]:
        """Values that were found at a place, or what has become of them since."""
        try:
            if found[0][1].is_head:  # then all are
                values = self._fetch({CheckpointId(group, key): location for key, location in found})
                return [(id.key, value) for id, value in values.items()]
            records = self.records([location for _, location in found])
            return [(key, self._value(records[location], location, group, key)) for key, location in found]
        except Unavailable:  # perhaps some were moved or replaced
            ids = [CheckpointId(group, key) for key, _ in found]
            return [(id.key, value) for id, value in zip(ids, self.read(ids), strict=True) if value is not None]

    def _value(self, record: bytes, location: RecordLocation, group: str, key: bytes) -> bytes:
        """The value in a record, which must be that of an id."""
        try:
            there, its_key, value = open_record(record, "")
        except Corruption:
            there, its_key, value = open_record(record, self._where(location))  # which says where it is
        if there != group or its_key != key:
            raise Corruption(f"{self._where(location)}: holds {there}/{its_key!r} where the index says {group}/{key!r}")
        return value[TOKEN_BYTES:] if location.is_created else value

    def stored_at(self, location: RecordLocation) -> bytes:
        """What a record has: its value, and before that its token if it was created."""
        (record,) = self.records([location]).values()
        return open_record(record, self._where(location))[2]

    def look_for(self, id: CheckpointId, prefix: str) -> tuple[RecordLocation | None, int]:
        """Where the value of *id* is, as of now or later; and the highest number of a segment named *prefix* and it, 0
        if there is none: both as one listing shows them."""
        with self._refreshing:
            self._catch_up()
            with self.lock:
                names = [segment.path.rpartition("/")[2] for segment in self.segments.values()]
                numbers = [int(name.removeprefix(prefix)) for name in names if name.startswith(prefix)]
                return self.index.find(id.group, id.key), max(numbers, default=0)

    def _find(self, ids: Sequence[CheckpointId]) -> dict[CheckpointId, RecordLocation]:
        with self.lock:
            locations = ((id, self.index.find(id.group, id.key)) for id in ids)
            return {id: location for id, location in locations if location is not None}

    def _fetch(self, found: dict[CheckpointId, RecordLocation]) -> dict[CheckpointId, bytes]:
        records = self.records(found.values())
        values: dict[CheckpointId, bytes] = {}
        for id, location in found.items():
            values[id] = self._value(records[location], location, id.group, id.key)
        large = [
            (id, HdfsLargeValue.decode(values[id], self._where(location)))
            for id, location in found.items()
            if location.is_head
        ]
        if large:
            folder = self.path("chunks")
            values.update(zip((id for id, _ in large), read_chunks(self, folder, [h for _, h in large]), strict=True))
        return values

    def records(self, locations: Iterable[RecordLocation]) -> dict[RecordLocation, bytes]:
        """The whole records at *locations*, read in few pieces, several at once."""
        runs: list[list[RecordLocation]] = []
        for location in sorted(locations, key=lambda location: (location.file_id, location.offset)):
            if runs and _fits(runs[-1], location):
                runs[-1].append(location)
            else:
                runs.append([location])
        with self.lock:
            segments = dict(self.segments)
        records: dict[RecordLocation, bytes] = {}
        for run, data in zip(runs, self.in_parallel(lambda run: _read_run(segments, run), runs), strict=True):
            for location in run:
                start = location.offset - run[0].offset
                records[location] = data[start : start + location.size]
        return records

    def heads(self, locations: Iterable[RecordLocation]) -> list[HdfsLargeValue]:
        """The heads of large values, from their records."""
        heads = []
        for location, record in self.records(locations).items():
            stored = open_record(record, self._where(location))[2]
            stored = stored[TOKEN_BYTES:] if location.is_created else stored
            heads.append(HdfsLargeValue.decode(stored, self._where(location)))
        return heads

    def _where(self, location: RecordLocation) -> str:
        segment = self.segments.get(location.file_id)
        return f"{segment.path if segment else location.file_id}: offset {location.offset}"

    def in_parallel(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """*work* on all *items*, several at once; when this returns or raises, all of it has ended.

        Not to be called inside such work.
        """
        if len(items) < 2:
            return [work(item) for item in items]
        try:
            futures = [self._readers.submit(work, item) for item in items]
        except RuntimeError as error:
            raise Closed("this store was closed: open a new one") from error
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """Let go of everything."""
        self._readers.shutdown()
        self.client.close()


def _fits(run: list[RecordLocation], location: RecordLocation) -> bool:
    last = run[-1]
    near = location.file_id == last.file_id and location.offset <= last.offset + last.size + _RUN_GAP
    return near and location.offset + location.size - run[0].offset <= _RUN_BYTES


def _read_run(segments: dict[int, HdfsSegment], run: list[RecordLocation]) -> bytes:
    end = max(location.offset + location.size for location in run)
    segment = segments.get(run[0].file_id)
    if segment is None:
        raise Missing(f"file {run[0].file_id}: was just removed: somebody has compacted it")
    return segment.read(run[0].offset, end - run[0].offset)
