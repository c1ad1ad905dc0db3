"""The part of the contract about `scan`, for backends that have it."""

from __future__ import annotations

from random import Random

import pytest

from safekeeper.backend import Backend, Batch, CheckpointId, SupportsScan
from safekeeper.errors import Closed
from safekeeper.testing.contract.base import Kit, Opener, delete, meanwhile
from safekeeper.testing.ids import AWKWARD_KEYS
from safekeeper.testing.peer import Handle

_PAGE_BYTES = 100 << 20
"""More than a page has: the largest value, and some room."""


class ScanContract(Kit):
    """A scan gives what `keys` and `read` give."""

    @pytest.fixture
    def scannable(self, store: Backend) -> SupportsScan:
        """The store."""
        if not isinstance(store, SupportsScan):
            pytest.skip("this backend has no scan")
        return store

    def test_a_scan_gives_every_key_with_its_value(
        self, store: Backend, scannable: SupportsScan, opened: Opener, group: str
    ) -> None:
        assert _scan(scannable, group) == {}
        random = Random(1)  # noqa: S311
        values = {key: random.randbytes(random.choice((0, 1, 300, 70_000))) for key in AWKWARD_KEYS.values()}
        store.write(Batch({CheckpointId(group, key): value for key, value in values.items()}))
        store.write(Batch({CheckpointId(f"{group}2", b"beside"): b"1", CheckpointId(group[:-1], b"beside"): b"1"}))
        gone, changed = list(values)[:3], list(values)[3:6]
        delete(store, *(CheckpointId(group, key) for key in gone))
        store.write(Batch({CheckpointId(group, key): b"changed" for key in changed}))
        expected = {key: value for key, value in values.items() if key not in gone} | dict.fromkeys(changed, b"changed")
        assert _scan(scannable, group) == expected
        fresh = opened()
        assert isinstance(fresh, SupportsScan)
        assert _scan(fresh, group) == expected

    def test_a_scan_of_many_comes_in_pages(self, store: Backend, scannable: SupportsScan, group: str) -> None:
        for start in range(0, 40, 10):
            puts = {CheckpointId(group, b"%d" % n): bytes([n]) * (4 << 20) for n in range(start, start + 10)}
            store.write(Batch(puts))
        store.write(Batch({CheckpointId(group, b"small-%d" % n): b"%d" % n for n in range(3000)}))
        pages = [len(page) for page in scannable.scan(group)]
        assert sum(pages) >= 3040
        sizes = [sum(len(key) + len(value) for key, value in page) for page in scannable.scan(group)]
        assert max(sizes) <= _PAGE_BYTES

    def test_a_scan_shows_what_stays_while_the_rest_changes(
        self, store: Backend, scannable: SupportsScan, other: Handle, group: str
    ) -> None:
        staying = [CheckpointId(group, b"stays-%d" % n) for n in range(50)]
        store.write(Batch(dict.fromkeys(staying, b"0")))

        def churn() -> None:
            for turn in range(15):
                changing = [CheckpointId(group, b"changes-%d" % n) for n in range(5)]
                other.write(Batch(dict.fromkeys([*staying, *changing], b"%d" % turn)))
                delete(other, *changing)

        least = 0
        for _ in meanwhile(churn):
            found = _scan(scannable, group)
            assert {id.key for id in staying} <= set(found)
            newest = max(int(found[id.key]) for id in staying)
            assert newest >= least, "a scan gave values that had been replaced before it began"
            least = min(int(value or b"0") for value in store.read(staying))

    def test_a_scan_of_a_closed_handle_raises_closed(self, store: Backend, scannable: SupportsScan, group: str) -> None:
        store.write(Batch({CheckpointId(group, b"%d" % n): b"" for n in range(20)}))
        begun, fresh = scannable.scan(group), scannable.scan(group)
        next(begun)
        store.close()
        with pytest.raises(Closed):
            next(fresh)
        with pytest.raises((Closed, StopIteration)):  # it may have had only one page
            next(begun)


def _scan(store: SupportsScan, group: str) -> dict[bytes, bytes]:
    return {key: value for page in store.scan(group) for key, value in page}
