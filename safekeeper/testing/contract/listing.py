"""The part of the contract about `keys` and `groups`."""

from __future__ import annotations

from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.testing.contract.base import Kit, Opener, delete, meanwhile, put
from safekeeper.testing.peer import Handle


class ListingContract(Kit):
    """Whatever is there throughout a listing is in it."""

    def test_a_group_that_does_not_exist_has_no_keys(self, store: Backend, group: str) -> None:
        assert list(store.keys(group)) == []
        assert group not in set(store.groups())

    def test_keys_lists_one_group_and_no_other(self, store: Backend, opened: Opener, group: str) -> None:
        names = [group, f"{group}2", group[:-1], f"{group}/"]
        store.write(Batch({CheckpointId(name, name.encode() + b"%d" % n): b"" for name in names for n in range(5)}))
        for handle in (store, opened()):
            for name in names:
                assert set(handle.keys(name)) == {name.encode() + b"%d" % n for n in range(5)}
            assert set(names) <= set(handle.groups())

    def test_a_group_exists_as_long_as_it_has_an_id(self, store: Backend, opened: Opener, group: str) -> None:
        first, second = CheckpointId(group, b"first"), CheckpointId(group, b"second")
        reader = opened()
        for id in (first, second):
            put(store, id, b"")
            assert group in set(store.groups())
            assert group in set(reader.groups())
        delete(store, first)
        assert group in set(store.groups())
        delete(store, second)
        assert group not in set(store.groups())
        assert group not in set(reader.groups())
        store.close()
        assert group not in set(opened().groups())
        put(reader, second, b"again")
        assert group in set(reader.groups())

    def test_many_keys_and_many_groups_are_all_listed(self, store: Backend, group: str) -> None:
        keys = {b"%04d" % n for n in range(1200)}
        groups = {f"{group}-{n}" for n in range(150)}
        store.write(Batch({CheckpointId(group, key): b"" for key in keys}))
        store.write(Batch({CheckpointId(name, b"key"): b"" for name in groups}))
        assert set(store.keys(group)) == keys
        assert groups | {group} <= set(store.groups())

    def test_a_listing_shows_what_stays_while_the_rest_changes(self, store: Backend, other: Handle, group: str) -> None:
        staying = {b"stays-%d" % n for n in range(50)}
        leaving = [CheckpointId(group, b"leaves-%d" % n) for n in range(50)]
        store.write(Batch({CheckpointId(group, key): b"1" for key in staying}))
        store.write(Batch(dict.fromkeys(leaving, b"1")))
        listing = store.keys(group)
        seen = {next(listing)}
        delete(other, *leaving)
        other.write(Batch({CheckpointId(group, key): b"2" for key in staying}))
        other.write(Batch({CheckpointId(group, b"comes-%d" % n): b"1" for n in range(50)}))
        seen.update(listing)
        assert staying <= seen
        assert seen <= staying | {id.key for id in leaving} | {b"comes-%d" % n for n in range(50)}

    def test_what_stays_is_listed_while_others_write(self, store: Backend, other: Handle, group: str) -> None:
        staying = [CheckpointId(group, b"stays-%d" % n) for n in range(10)]
        beside = [CheckpointId(f"{group}-{n}", b"stays") for n in range(5)]
        store.write(Batch(dict.fromkeys([*staying, *beside], b"0")))

        def churn() -> None:
            for turn in range(15):
                changing = [CheckpointId(group, b"changes-%d" % n) for n in range(5)]
                passing = CheckpointId(f"{group}-passing", b"key")
                other.write(Batch(dict.fromkeys([*staying, *changing, passing], b"%d" % turn)))
                delete(other, *changing, passing)

        for _ in meanwhile(churn):
            assert {id.key for id in staying} <= set(store.keys(group))
            assert {id.group for id in [*staying, *beside]} <= set(store.groups())
        assert set(store.keys(group)) == {id.key for id in staying}
