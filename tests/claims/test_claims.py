"""Who owns a name: the protocol in every order, and the code in many."""

import json
import os
from random import Random

import pytest

from safekeeper import BadId, BadState, Batch, CheckpointId, Conflict, Unavailable, claims
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty

from ..unruly import Turns, UnrulyStore
from .model import Lost, Rules, explore

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


@pytest.fixture
def store():
    with MemoryBackend() as store:
        yield store


def claims_of(store, name="orders"):
    return sorted(store.keys(f"{name}.claims"))


SOUND = {
    "two processes": Rules((3, 3)),
    "two processes, two writes a check": Rules((3, 3), together=2),
    "three processes": Rules((1, 1, 1)),
}
MISTAKEN = {
    "no check after the write": Rules((1, 1), check=False),
    "lower claims left standing": Rules((1, 0), end_lower=False),
    "highest deleted first": Rules((1, 0, 0), lowest_first=False),
}
if LONG:  # a minute each
    SOUND["three processes that write twice"] = Rules((2, 2, 2))
    SOUND["three processes, two writes a check"] = Rules((2, 2, 2), together=2)


@pytest.mark.crash
class TestEveryOrder:
    @pytest.mark.parametrize("rules", SOUND.values(), ids=SOUND)
    def test_nothing_that_was_acknowledged_is_missed(self, rules):
        assert explore(rules) > 2_000

    @pytest.mark.parametrize("rules", MISTAKEN.values(), ids=MISTAKEN)
    def test_a_protocol_with_a_mistake_loses_something(self, rules):
        with pytest.raises(Lost):
            explore(rules)


class TestTheCodeInManyOrders:
    @pytest.mark.parametrize("seed", range(2_000 if LONG else 150))
    def test_what_is_acknowledged_is_found_by_whoever_takes_over(self, seed):
        self.play(seed)

    def test_it_would_be_found_out(self, monkeypatch):
        def take_without_looking(claim):
            pass

        monkeypatch.setattr(claims.Claim, "check", take_without_looking)
        with pytest.raises(AssertionError, match="not found"):
            self.play_all(range(500))

    def play_all(self, seeds):
        for seed in seeds:
            self.play(seed)

    def play(self, seed):
        random = Random(seed)
        turns = Turns(random)
        store = UnrulyStore(random, turns)
        acknowledged: dict[CheckpointId, claims.Mark] = {}
        found: list[tuple[claims.Mark, set[CheckpointId]]] = []

        def own() -> None:
            for _ in range(2):
                try:
                    claim = claims.take(store, "orders")
                    found.append((claim.mark, {CheckpointId("orders", key) for key in store.keys("orders")}))
                    for number in range(2):
                        id = CheckpointId("orders", b"%s-%d" % (claim.mark.key(), number))
                        store.write(Batch({id: b""}))
                        claim.check()
                        acknowledged[id] = claim.mark
                except Conflict:
                    continue

        turns.run(own, own, own)
        for mark, seen in found:
            missed = [id for id, by in acknowledged.items() if by < mark and id not in seen]
            assert not missed, f"seed {seed}: {missed} not found by {mark}"


class TestTaking:
    def test_the_first_claim_holds(self, store):
        claim = claims.take(store, "orders")
        claim.check()
        assert claim.mark.epoch == 1

    def test_the_next_one_ends_it_and_says_who_it_is(self, store):
        first = claims.take(store, "orders")
        second = claims.take(store, "orders")
        second.check()
        assert second.mark > first.mark
        with pytest.raises(Conflict, match=rf"orders was taken by process {os.getpid()} on .*, epoch 2"):
            first.check()

    def test_names_have_nothing_to_do_with_each_other(self, store):
        orders, users = claims.take(store, "orders"), claims.take(store, "users")
        orders.check()
        users.check()

    def test_lower_claims_go_and_the_highest_stays(self, store):
        for _ in range(5):
            claim = claims.take(store, "orders")
            claim.release()
        assert [key[:-16] for key in claims_of(store)] == [b"claim_%019d_" % 5, b"done_%019d_" % 5]

    def test_a_claim_that_was_deleted_holds_no_more(self, store):
        claim = claims.take(store, "orders")
        batch = Batch()
        batch.delete(CheckpointId("orders.claims", claim.mark.key()))
        store.write(batch)
        with pytest.raises(Conflict):
            claim.check()

    def test_a_claim_that_was_written_but_not_answered_is_written_again(self, store):
        faulty = Faulty(store)
        faulty.fail("write", when="after")
        claims.take(faulty, "orders").check()
        assert len(claims_of(store)) == 1

    def test_a_store_that_does_not_answer_gives_no_claim(self, store):
        faulty = Faulty(store)
        faulty.fail("write", times=3)
        with pytest.raises(Unavailable):
            claims.take(faulty, "orders")

    def test_a_check_without_an_answer_can_be_made_again(self, store):
        faulty = Faulty(store)
        claim = claims.take(faulty, "orders")
        faulty.fail("read")
        with pytest.raises(Unavailable):
            claim.check()
        claim.check()

    def test_who_cannot_end_the_owner_has_taken_nothing(self, store):
        owner = claims.take(store, "orders")
        faulty = Faulty(store)
        faulty.fail("write", skip=1, times=3)
        with pytest.raises(Unavailable):
            claims.take(faulty, "orders")
        assert len(claims_of(store)) == 2
        owner.check()
        next_one = claims.take(store, "orders")
        assert claims_of(store) == [next_one.mark.key()]
        assert next_one.mark.epoch == 3
        with pytest.raises(Conflict):
            owner.check()
        next_one.check()

    def test_a_check_is_one_read(self, store):
        faulty = Faulty(store)
        claim = claims.take(faulty, "orders")
        faulty.fail("keys", times=100)
        claim.check()

    def test_a_group_that_holds_something_else_is_refused(self, store):
        store.write(Batch({CheckpointId("orders.claims", b"note"): b""}))
        with pytest.raises(BadState, match=r"orders\.claims/note is not a claim"):
            claims.take(store, "orders")

    def test_a_name_has_to_fit(self, store):
        with pytest.raises(BadId):
            claims.take(store, "x" * 250)


class TestTheHolder:
    def test_nobody_is_the_holder_of_a_new_name(self, store):
        assert claims.holder(store, "orders") is None

    def test_it_says_of_itself_what_it_was_given(self, store):
        claim = claims.take(store, "orders", watch="10.0.0.1:7070")
        holder = claims.holder(store, "orders")
        assert (holder.mark, holder.about["watch"], holder.about["pid"]) == (claim.mark, "10.0.0.1:7070", os.getpid())
        assert not holder.done

    def test_after_a_release_nobody_need_wait(self, store):
        claims.take(store, "orders").release()
        assert claims.holder(store, "orders").done
        claims.take(store, "orders")
        assert not claims.holder(store, "orders").done

    def test_the_keys_are_as_they_are_written_down(self, store):
        mark = claims.Mark(12, "00ff00ff00ff00ff")
        assert mark.key() == b"claim_0000000000000000012_00ff00ff00ff00ff"
        store.write(Batch({CheckpointId("orders.claims", mark.key()): json.dumps({"host": "a", "pid": 1}).encode()}))
        assert str(claims.holder(store, "orders")) == "process 1 on a, epoch 12"
        assert claims.take(store, "orders").mark.epoch == 13
