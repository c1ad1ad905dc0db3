"""Every byte of a small store flipped in turn, every truncation, lying and missing files.

What must happen is predicted from the rule in `docs/format.md`: the right value, an error that names the place, or,
only for a block that nobody has confirmed, a tail that is cut.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Corruption
from safekeeper.backends.log.backend import LogBackend

from .damage import OPTIONS, TAIL, Values, id_of, make, some
from .layout import SegmentLayout, layout_of
from .power import QuickFiles

DAMAGED = "damaged"


@dataclass(frozen=True)
class Image:
    """A store on disk, and what it held after each block of its last segment."""

    root: Path
    states: list[Values]

    @property
    def folder(self) -> Path:
        return self.root / "writer-1"

    @cached_property
    def layouts(self) -> list[SegmentLayout]:
        return layout_of(self.folder)


KINDS = ("closed", "killed", "after a power cut")


@pytest.fixture(params=KINDS)
def image(request, tmp_path) -> Image:
    """A store that was closed, one whose writer was killed, one whose mapped status was lost as well."""
    kind = request.param
    states = make(tmp_path / "closed", tmp_path / "killed")
    root = tmp_path / ("closed" if kind == "closed" else "killed")
    if kind == "after a power cut":
        (root / "writer-1" / "head").unlink()
    return Image(root, states)


def test_the_images_hold_what_the_tables_below_rely_on(image):
    closed = image.root.name == "closed"
    found = [(layout.sealed, layout.indexed, len(layout.blocks)) for layout in image.layouts]
    assert found == [(True, True, 2), (True, True, 1), (closed, False, len(TAIL))]
    assert len(list(image.folder.glob("*.index"))) == 1
    roles = {area.role for layout in image.layouts for area in layout.areas}
    assert roles == {"head", "block", "record", "columns", "values", "padding", "behind"}
    assert look(image) == image.states[-1]


def look(image: Image) -> Values | str:
    """The value of every id, or DAMAGED where it cannot be read; only DAMAGED if the store as a whole cannot be."""
    with LogBackend(image.root, OPTIONS) as store:
        seen: dict[CheckpointId, bytes | str | None] = {}
        for id in image.states[-1]:
            try:
                (seen[id],) = store.read([id])
            except Corruption as error:
                names_the_place = str(image.folder) in str(error) and ": offset " in str(error)
                seen[id] = DAMAGED if names_the_place else f"an error that names no place: {error}"
        check_listing(store, seen)
        assert (DAMAGED in seen.values()) <= (list(store.verify()) != [])
    return DAMAGED if set(seen.values()) == {DAMAGED} else seen


def check_listing(store: LogBackend, seen: dict) -> None:
    """Keys and groups either agree with the values or raise `Corruption`, and they only raise it if something is."""
    try:
        listed = {CheckpointId(group, key) for group in store.groups() for key in store.keys(group)}
    except Corruption:
        assert DAMAGED in seen.values()
        return
    assert listed - {id for id, value in seen.items() if value == DAMAGED} == {
        id for id, value in seen.items() if value not in (None, DAMAGED)
    }


def predict(image: Image, layout: SegmentLayout, offset: int) -> Values | str:
    """What reading must give when the byte at *offset* of a segment is another one."""
    area, right = layout.area(offset), image.states[-1]
    if area.role in ("padding", "behind"):
        return right
    if layout.indexed:
        ids = all_ids(layout) if area.role == "head" else area.ids
        return without(right, current(image, layout, ids))
    last = area.block == len(layout.blocks) - 1
    unconfirmed = last and area.role != "head" and not layout.sealed and not (image.folder / "head").exists()
    return image.states[-2] if unconfirmed else DAMAGED


def all_ids(layout: SegmentLayout) -> frozenset[CheckpointId]:
    return frozenset().union(*(area.ids for area in layout.areas))


def current(image: Image, layout: SegmentLayout, ids: frozenset[CheckpointId]) -> frozenset[CheckpointId]:
    """Those of *ids* whose newest record is in this segment, not in a later one."""
    later = image.layouts[image.layouts.index(layout) + 1 :]
    return ids.difference(*map(all_ids, later))


def without(values: Values, ids: frozenset[CheckpointId]) -> Values:
    return {id: DAMAGED if id in ids else value for id, value in values.items()}


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_a_flipped_byte_in_a_segment_gives_the_right_value_or_an_error_or_a_cut_tail(image):
    for layout in image.layouts:
        data = bytearray(layout.path.read_bytes())
        for offset in some(range(min(layout.areas[-1].start + 100, len(data)))):
            expected = predict(image, layout, offset)
            data[offset] ^= 1 << offset % 8
            layout.path.write_bytes(data)
            found = look(image)
            data[offset] ^= 1 << offset % 8
            assert found == expected, f"byte {offset} of {layout.path.name}, {layout.area(offset)}"
        layout.path.write_bytes(data)


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_a_segment_that_was_cut_short_gives_the_right_value_or_an_error_or_a_cut_tail(image):
    for layout in image.layouts:
        data = layout.path.read_bytes()
        for size in some(range(min(layout.areas[-1].start + 100, len(data)))):
            expected = predict_truncated(image, layout, size)
            layout.path.write_bytes(data[:size])
            found = look(image)
            assert found == expected, f"{layout.path.name} with {size} bytes"
        layout.path.write_bytes(data)


def predict_truncated(image: Image, layout: SegmentLayout, size: int) -> Values | str:
    right = image.states[-1]
    if size >= layout.blocks[-1]:
        return right
    if layout.indexed:
        lost = [area.ids for area in layout.areas if area.end > size]
        ids = all_ids(layout) if size < 32 else frozenset().union(*lost)
        return without(right, current(image, layout, ids))
    if size < 32 or layout.sealed or (image.folder / "head").exists():
        return DAMAGED
    return image.states[sum(end <= size for end in layout.blocks)]


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_a_damaged_index_file_or_writer_status_or_claim_changes_no_answer(image):
    for path in (
        *image.folder.glob("*.index"),
        *image.folder.glob("head"),
        image.root / "claim",
        image.folder / "lock",
    ):
        data = bytearray(path.read_bytes())
        for offset in some(range(len(data))):
            data[offset] ^= 1 << offset % 8
            path.write_bytes(data)
            assert look(image) == image.states[-1], f"byte {offset} of {path.name}"
            data[offset] ^= 1 << offset % 8
            path.write_bytes(data[:offset])
            assert look(image) == image.states[-1], f"{path.name} with {offset} bytes"
        path.write_bytes(data)


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_a_damaged_manifest_is_an_error(image):
    path = image.folder / "manifest"
    data = bytearray(path.read_bytes())
    for offset in some(range(len(data))):
        data[offset] ^= 1 << offset % 8
        path.write_bytes(data)
        assert look(image) == DAMAGED, f"byte {offset}"
        data[offset] ^= 1 << offset % 8
        path.write_bytes(data[:offset])
        assert look(image) == DAMAGED, f"{offset} bytes"
    path.write_bytes(data)


def test_a_missing_segment_is_an_error_that_names_it(image, tmp_path):
    for layout in image.layouts:
        os.rename(layout.path, tmp_path / "away")
        with LogBackend(image.root) as store, pytest.raises(Corruption, match=layout.path.name):
            store.read([id_of("e")])
        os.rename(tmp_path / "away", layout.path)


def test_a_missing_manifest_is_an_error_and_no_reason_to_begin_anew(image):
    segments = [layout.path for layout in image.layouts]
    (image.folder / "manifest").unlink()
    assert look(image) == DAMAGED
    with LogBackend(image.root) as store, pytest.raises(Corruption, match="the manifest is missing"):
        store.write(Batch({id_of("a"): b"new"}))
    assert all(path.exists() for path in segments)


def test_segments_that_changed_places_are_an_error(image):
    first, *_, last = image.layouts
    contents = first.path.read_bytes(), last.path.read_bytes()
    first.path.write_bytes(contents[1])
    last.path.write_bytes(contents[0])
    assert look(image) == DAMAGED
    first.path.write_bytes(contents[0])
    last.path.write_bytes(contents[1])


def test_a_store_that_cannot_be_opened_keeps_no_files_open(image):
    image.layouts[-1].path.unlink()
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert look(image) == DAMAGED
    assert len(os.listdir("/proc/self/fd")) <= open_files


def test_a_store_with_more_segments_than_a_process_may_open_is_read(tmp_path):
    values = {id_of(str(n)): bytes([n % 251]) * 3000 for n in range(400)}
    with LogBackend(tmp_path / "store", OPTIONS, QuickFiles()) as store:
        for id, value in values.items():
            store.write(Batch({id: value}))
    for index in (tmp_path / "store").glob("*/*.index"):
        index.unlink()
    assert len(list((tmp_path / "store").glob("*/*.segment"))) > 300
    open_files = len(os.listdir("/proc/self/fd"))
    with LogBackend(tmp_path / "store", OPTIONS) as store:
        assert {id: store.read([id])[0] for id in values} == values
        assert len(os.listdir("/proc/self/fd")) < open_files + 300
        assert store.read(list(values)) == list(values.values())
        assert set(store.keys("group")) == {id.key for id in values}
    assert len(os.listdir("/proc/self/fd")) <= open_files


def test_an_index_file_of_yesterday_is_not_believed(tmp_path):
    id = id_of("a")
    with LogBackend(tmp_path / "store", OPTIONS) as store:
        store.write(Batch({id: b"old"}))
        store.compact()
        (old,) = (tmp_path / "store" / "writer-1").glob("*.index")
        content = old.read_bytes()
        store.write(Batch({id: b"new"}))
        store.compact()
    (new,) = (tmp_path / "store" / "writer-1").glob("*.index")
    new.write_bytes(content)
    with LogBackend(tmp_path / "store", OPTIONS) as store:
        assert store.read([id]) == [b"new"]


def test_an_index_that_lies_with_a_good_checksum_never_gives_somebody_elses_value(tmp_path, monkeypatch):
    a, b = id_of("a"), id_of("b")
    with LogBackend(tmp_path / "store", OPTIONS) as store:
        store.write(Batch({a: b"of a", b: b"of b"}))
        store.compact()
        table = store._log.root.own.state.index.table
        table.locations = table.locations[::-1]
        for id in (a, b):
            with pytest.raises(Corruption, match="where the index says"):
                store.read([id])
