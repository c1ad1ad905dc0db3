"""When operators append blocks, and what is in them."""

from dataclasses import dataclass, field
from itertools import islice

import pytest

from safekeeper.policy import Changed, Choice, Eventual, Every
from safekeeper.policy.capture import Lingering


@dataclass
class Seen:
    """An operator, as a policy sees it; each part that is recorded makes recovery shorter."""

    unsaved: int = 1
    waited: float = 1.0
    since_block: float = 1.0
    linger: float = 0.005
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
