"""The part of the contract about single values, batches and ids."""

from __future__ import annotations

import pytest

from safekeeper.backend import MAX_VALUE_BYTES, Backend, Batch, CheckpointId
from safekeeper.columns import Columns
from safekeeper.testing.contract.base import Kit, Opener, check_value, delete, get, put
from safekeeper.testing.ids import AWKWARD_GROUPS, AWKWARD_KEYS


class ValuesContract(Kit):
    """What is written is read, byte for byte, under exactly the id it was written to."""

    def test_what_was_never_written_is_absent(self, store: Backend, group: str) -> None:
        assert store.read([CheckpointId(group, b"nothing")]) == [None]

    def test_what_was_written_is_read_here_and_by_another_handle(
        self, store: Backend, opened: Opener, group: str
    ) -> None:
        id = CheckpointId(group, b"key")
        put(store, id, b"value")
        assert get(store, id) == b"value"
        assert get(opened(), id) == b"value"

    def test_a_later_value_replaces_an_earlier_one(self, store: Backend, group: str) -> None:
        id = CheckpointId(group, b"key")
        put(store, id, b"first")
        put(store, id, b"second")
        assert get(store, id) == b"second"

    def test_a_deleted_id_is_absent_also_after_reopening(self, store: Backend, opened: Opener, group: str) -> None:
        id, other = CheckpointId(group, b"key"), CheckpointId(group, b"other")
        put(store, id, b"first")
        put(store, id, b"second")
        put(store, other, b"stays")
        delete(store, id)
        assert store.read([id, other]) == [None, b"stays"]
        store.close()
        reopened = opened()
        assert reopened.read([id, other]) == [None, b"stays"]
        assert set(reopened.keys(group)) == {b"other"}

    def test_a_deleted_id_can_be_written_again(self, store: Backend, opened: Opener, group: str) -> None:
        id = CheckpointId(group, b"key")
        for value in (b"first", b"second"):
            put(store, id, value)
            delete(store, id)
        put(store, id, b"third")
        store.close()
        assert get(opened(), id) == b"third"

    def test_deleting_what_is_not_there_is_not_an_error(self, store: Backend, group: str) -> None:
        delete(store, CheckpointId(group, b"never"))
        put(store, CheckpointId(group, b"key"), b"")
        delete(store, CheckpointId(group, b"never"))
        assert set(store.keys(group)) == {b"key"}

    def test_a_value_of_no_bytes_is_not_absent(self, store: Backend, opened: Opener, group: str) -> None:
        id = CheckpointId(group, b"key")
        put(store, id, b"")
        assert get(store, id) == b""
        assert set(store.keys(group)) == {b"key"}
        store.close()
        assert get(opened(), id) == b""

    def test_the_largest_value_comes_back_byte_for_byte(self, store: Backend, opened: Opener, group: str) -> None:
        id, neighbour = CheckpointId(group, b"large"), CheckpointId(group, b"neighbour")
        block = bytes(range(256)) * 4096
        largest = b"".join(block[i:] + block[:i] for i in range(MAX_VALUE_BYTES // len(block)))
        store.write(Batch({id: largest, neighbour: b"small"}))
        value, beside = store.read([id, neighbour])
        assert value is not None
        assert len(value) == MAX_VALUE_BYTES
        assert value == largest, "the largest value came back changed"  # no diff of 64 MiB
        assert beside == b"small"
        put(store, id, b"tiny")
        assert opened().read([id, neighbour]) == [b"tiny", b"small"]

    def test_a_large_value_replaces_a_small_one_and_back(self, store: Backend, group: str) -> None:
        id = CheckpointId(group, b"key")
        sizes = [0, 3_000_000, 1, 70_000, 0, 70_001, 69_999, 511, 2_500_000, 5]
        for turn, size in enumerate(sizes):
            value = bytes([turn]) * size
            put(store, id, value)
            check_value(f"after values of {sizes[: turn + 1]} bytes", get(store, id), value)
        assert set(store.keys(group)) == {b"key"}

    def test_a_read_keeps_the_order_and_answers_every_repetition(self, store: Backend, group: str) -> None:
        ids = [CheckpointId(group, b"%d" % n) for n in range(20)]
        store.write(Batch({id: b"value of " + id.key for id in ids if int(id.key) % 3}))
        asked = [*reversed(ids), ids[1], ids[1], ids[0], ids[0], *ids[5:7], ids[1]]
        expected = [b"value of " + id.key if int(id.key) % 3 else None for id in asked]
        assert store.read(asked) == expected
        assert store.read(tuple(asked)) == expected

    def test_a_read_of_several_groups_is_answered_in_order(self, store: Backend, group: str) -> None:
        ids = [CheckpointId(f"{group}-{n % 3}", b"%d" % n) for n in range(9)]
        store.write(Batch({id: id.key for id in ids}))
        assert store.read(ids) == [id.key for id in ids]

    def test_a_read_of_nothing_gives_nothing(self, store: Backend, group: str) -> None:
        assert store.read([]) == []
        put(store, CheckpointId(group, b"key"), b"value")
        assert store.read([]) == []

    def test_an_empty_batch_is_not_an_error_and_changes_nothing(self, store: Backend, group: str) -> None:
        store.write(Batch())
        put(store, CheckpointId(group, b"key"), b"value")
        store.write(Batch())
        store.write(Batch.of_columns(Columns.of(group, [], [])))
        assert get(store, CheckpointId(group, b"key")) == b"value"
        assert set(store.keys(group)) == {b"key"}

    def test_in_a_batch_the_last_operation_on_an_id_counts(self, store: Backend, opened: Opener, group: str) -> None:
        put_last, deleted_last, untouched = (CheckpointId(group, key) for key in (b"put", b"deleted", b"untouched"))
        store.write(Batch({put_last: b"old", deleted_last: b"old", untouched: b"old"}))
        batch = Batch()
        batch.delete(put_last)
        batch.put(deleted_last, b"new")
        batch.put(put_last, b"newer")
        batch.put(put_last, b"newest")
        batch.delete(deleted_last)
        store.write(batch)
        for handle in (store, opened()):
            assert handle.read([put_last, deleted_last, untouched]) == [b"newest", None, b"old"]

    def test_a_batch_reaches_across_groups(self, store: Backend, group: str) -> None:
        one, two = CheckpointId(f"{group}-1", b"key"), CheckpointId(f"{group}-2", b"key")
        put(store, one, b"old")
        batch = Batch({two: b"new"})
        batch.delete(one)
        store.write(batch)
        assert store.read([one, two]) == [None, b"new"]

    def test_of_columns_the_last_value_of_a_key_counts(self, store: Backend, opened: Opener, group: str) -> None:
        keys = [b"a", b"b", b"", b"a", b"c", b"b", b"a"]
        values = [b"a1", b"b1", b"", b"a2", b"", b"b2", b"a3"]
        put(store, CheckpointId(group, b"c"), b"old")
        store.write(Batch.of_columns(Columns.of(group, keys, values)))
        expected = [b"a3", b"b2", b"", b""]
        for handle in (store, opened()):
            assert handle.read([CheckpointId(group, key) for key in (b"a", b"b", b"c", b"")]) == expected
            assert set(handle.keys(group)) == {b"a", b"b", b"c", b""}

    def test_columns_of_many_rows_are_all_written(self, store: Backend, group: str) -> None:
        keys = [b"%05d" % n for n in range(1000)]
        values = [b"v" * (n % 50) for n in range(1000)]
        store.write(Batch.of_columns(Columns.of(group, keys, values)))
        assert store.read([CheckpointId(group, key) for key in keys]) == values
        assert set(store.keys(group)) == set(keys)

    @pytest.mark.parametrize("key", AWKWARD_KEYS.values(), ids=AWKWARD_KEYS)
    def test_an_awkward_key_is_a_key_like_any_other(
        self, store: Backend, opened: Opener, group: str, key: bytes
    ) -> None:
        _check_life_of(CheckpointId(group, key), store, opened)

    @pytest.mark.parametrize("group", AWKWARD_GROUPS.values(), ids=AWKWARD_GROUPS)
    def test_an_awkward_group_is_a_group_like_any_other(self, store: Backend, opened: Opener, group: str) -> None:
        _check_life_of(CheckpointId(group, b"key"), store, opened)

    def test_awkward_keys_do_not_collide(self, store: Backend, opened: Opener, group: str) -> None:
        ids = {CheckpointId(group, key): name.encode() for name, key in AWKWARD_KEYS.items()}
        store.write(Batch(ids))
        for handle in (store, opened()):
            assert handle.read(list(ids)) == list(ids.values())
            assert set(handle.keys(group)) == set(AWKWARD_KEYS.values())
        gone, left = list(ids)[::2], list(ids)[1::2]
        delete(store, *gone)
        assert store.read(left) == [ids[id] for id in left]
        assert set(store.keys(group)) == {id.key for id in left}

    def test_awkward_groups_do_not_collide(self, store: Backend, opened: Opener) -> None:
        ids = {CheckpointId(group, b"key"): name.encode() for name, group in AWKWARD_GROUPS.items()}
        store.write(Batch(ids))
        for handle in (store, opened()):
            assert handle.read(list(ids)) == list(ids.values())
            assert {id.group for id in ids} <= set(handle.groups())
        delete(store, *ids)
        assert {id.group for id in ids}.isdisjoint(store.groups())

    def test_a_group_and_a_key_do_not_run_into_each_other(self, store: Backend, group: str) -> None:
        pairs = [("", b"a/b"), ("/a", b"b"), ("a", b"b"), ("", b"ab"), (":a", b"b"), ("", b"a:b"), ("%2fa", b"b")]
        ids = [CheckpointId(group + tail, key) for tail, key in pairs]
        store.write(Batch({id: b"%d" % n for n, id in enumerate(ids)}))
        assert store.read(ids) == [b"%d" % n for n in range(len(ids))]
        for id in ids:
            assert id.key in set(store.keys(id.group))
        assert set(store.keys(group)) == {b"a/b", b"ab", b"a:b"}


def _check_life_of(id: CheckpointId, store: Backend, opened: Opener) -> None:
    """Written, replaced, listed, deleted and gone: through two handles."""
    put(store, id, b"first")
    put(store, id, b"second")
    other = opened()
    for handle in (store, other):
        assert get(handle, id) == b"second"
        assert set(handle.keys(id.group)) == {id.key}
        assert id.group in set(handle.groups())
    delete(other, id)
    for handle in (store, other):
        assert get(handle, id) is None
        assert list(handle.keys(id.group)) == []
        assert id.group not in set(handle.groups())
