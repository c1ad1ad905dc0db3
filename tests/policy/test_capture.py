"""When operators append blocks, and what is in them."""

from dataclasses import dataclass, field
from itertools import islice

import pytest

from safekeeper.operators.outputs import Emitted
from safekeeper.policy import Changed, Choice, Eventual, Every, Sweep, Together
from safekeeper.policy.capture import Lingering


@dataclass(eq=False)
class Seen:
    """An operator, as a policy sees it; each part that is recorded makes recovery shorter."""

    unsaved: int = 1
    waited: float = 1.0
    since_block: float = 1.0
    linger: float = 0.005
    trimmed: int = 0
    live: int = 100
    records: int = 100
    replayed: int = 0
    load_rate: float = 100.0
    replay_rate: float = 10.0
    opening: float = 0.0
    asked: list[str] = field(default_factory=list)

    def oldest_record(self):
        self.asked.append("record")
        self.records -= 1
        return b"r"

    def oldest_change(self):
        self.asked.append("change")
        self.replayed -= 1
        return b"c"


def test_a_trigger_captures_all_that_has_changed():
    capture = Changed(Every(events=3))
    assert capture.due(Seen(unsaved=2)) is None
    assert capture.due(Seen(unsaved=3)) is Choice.CHANGED
    assert not capture.fuzzy


def test_a_lone_event_does_not_linger():
    assert Lingering().due(Seen(waited=0.0, since_block=0.004)) is None
    assert Lingering().due(Seen(waited=0.0, since_block=0.005)) is Choice.CHANGED
    assert not Lingering().fuzzy


class TestEventual:
    def test_a_block_waits_for_the_linger(self):
        assert Eventual().due(Seen(since_block=0.004)) is None
        assert Eventual().due(Seen(since_block=0.005)) is not None
        assert Eventual().due(Seen(unsaved=0)) is None

    def test_the_oldest_records_are_brought_forward_while_there_are_too_many(self):
        view = Seen(records=205)
        assert list(Eventual(q=2.0).due(view)) == [b"r"] * 5

    def test_the_oldest_changes_are_recorded_while_too_many_events_are_replayed(self):
        view = Seen(replayed=12)
        assert list(Eventual(u=10).due(view)) == [b"c"] * 2

    def test_records_come_first(self):
        view = Seen(records=201, replayed=11)
        assert list(Eventual(q=2.0, u=10).due(view)) == [b"r", b"c"]

    def test_the_budget_ends_it_and_comes_again_in_the_next_period(self):
        now = [0.0]
        capture = Eventual(q=1.0, budget=0.005, period=0.1, clock=lambda: now[0])
        view = Seen(records=10**6)
        parts = capture.due(view)
        assert len(list(islice(parts, 3))) == 3
        now[0] = 0.006
        assert list(parts) == []
        now[0] = 0.09
        assert list(capture.due(view)) == []
        now[0] = 0.1
        assert next(capture.due(view)) == b"r"
        assert capture.recorded == 4

    def test_recovery_is_kept_within_what_was_asked(self):
        view = Seen(records=300, replayed=60)  # 3 s and 6 s
        assert list(Eventual(recover_within=5.0).due(view))
        assert view.records / view.load_rate + view.replayed / view.replay_rate <= 3.5
        assert view.asked[0] == "change"

    def test_what_opening_takes_counts_too(self):
        assert list(Eventual(recover_within=5.0).due(Seen(records=300, opening=1.0)))
        assert not list(Eventual(recover_within=5.0).due(Seen(records=300)))

    def test_what_cannot_be_helped_is_not_tried(self):
        """All records are needed: to bring them forward gains nothing, but changes can be recorded."""
        view = Seen(records=10_000, live=10_000, replayed=5)
        next(Eventual(recover_within=1.0).due(view))
        assert view.asked == ["change"]

    @pytest.mark.parametrize(
        "settings",
        [
            {"recover_within": 1.0, "q": 2.0},
            {"recover_within": 0.0},
            {"budget": 0.2, "period": 0.1},
            {"budget": 0.0},
            {"q": -1.0},
        ],
        ids=str,
    )
    def test_mistakes_are_named(self, settings):
        with pytest.raises(ValueError, match=r"recover_within|budget"):
            Eventual(**settings)


class TestSweep:
    def test_a_trim_is_what_it_waits_for(self):
        sweep, view = Sweep(at_least=5.0), Seen()
        view.unsaved, view.waited, view.trimmed = 10, 1.0, 0
        assert sweep.due(view) is None
        view.trimmed = 3
        assert sweep.due(view) is Choice.CHANGED
        assert sweep.due(view) is None
        view.trimmed, view.unsaved = 4, 0
        assert sweep.due(view) is None  # nothing is new; the trim is not forgotten
        view.unsaved = 1
        assert sweep.due(view) is Choice.CHANGED

    def test_operators_may_share_it(self):
        sweep, one, other = Sweep(), Seen(), Seen()
        one.trimmed, other.trimmed = 100, 3
        assert sweep.due(one) is sweep.due(other) is Choice.CHANGED
        assert sweep.due(one) is sweep.due(other) is None

    def test_a_reader_that_is_away_does_not_keep_it_for_ever(self):
        sweep, view = Sweep(at_least=5.0, whole=True), Seen()
        view.unsaved, view.waited, view.trimmed = 1, 4.9, 0
        assert sweep.due(view) is None
        view.waited = 5.0
        assert sweep.due(view) is Choice.ALL

    def test_together_is_due_for_all_at_the_same_moment(self):
        now = [10.1]
        together = Together(0.5, clock=lambda: now[0])
        one, other = Seen(), Seen()
        one.unsaved = other.unsaved = 1
        assert together.due(one) is together.due(other) is None
        now[0] = 10.6
        assert together.due(one) is together.due(other) is Choice.CHANGED
        assert together.due(one) is None

    def test_settings_that_make_no_sense_are_refused(self):
        with pytest.raises(ValueError, match="at_least"):
            Sweep(at_least=0)
        with pytest.raises(ValueError, match="together every"):
            Together(0)


class TestOutputsOfABlock:
    def test_what_readers_have_acknowledged_before_it_is_not_in_it(self):
        emitted = Emitted()
        for number in range(1, 6):
            emitted.events.append(number)
            emitted.keys.append(b"")
            emitted.bodies.append(b"%d" % number)
            emitted.nbytes += 1
        assert emitted.fresh().last == 5
        emitted.confirm(3)
        outputs = emitted.take(1, all=False)
        assert (outputs.first, outputs.bodies) == (4, [b"4", b"5"])
        assert (emitted.number, emitted.held, emitted.held_bytes) == (5, 2, 2)
        emitted.confirm(5)
        assert (emitted.held, emitted.held_bytes) == (0, 0)

    def test_a_block_has_none_if_all_are_acknowledged(self):
        emitted = Emitted()
        emitted.events, emitted.keys, emitted.bodies, emitted.nbytes = [1], [b""], [b"x"], 1
        emitted.fresh()
        emitted.confirm(1)
        assert emitted.take(1, all=False) is None
        assert (emitted.number, emitted.held, emitted.held_bytes) == (1, 0, 0)

    def test_bytes_are_counted_right_if_a_reader_acknowledges_meanwhile(self):
        emitted = Emitted()

        class Confirming(bytes):
            """What is confirmed by another thread just when its length is asked for."""

            def __len__(self):
                emitted.confirm(2)
                return 1

        emitted.events, emitted.keys, emitted.bodies, emitted.nbytes = [1], [b""], [b"x"], 1
        emitted.take(1, all=False)
        emitted.events, emitted.keys, emitted.bodies, emitted.nbytes = [2], [b""], [Confirming(b"y")], 2
        emitted.fresh()
        emitted.confirmed = 2
        assert emitted.take(2, all=False) is None
        assert (emitted.held, emitted.held_bytes) == (0, 0)
