"""What active and passive standbys send: real processes, counted."""

import pytest

from safekeeper.bench.lab.copies import CopiedPair, FirstCopy
from safekeeper.bench.studies import standby_messages
from safekeeper.bench.studies.standby_messages import COPIES, SentMessages, Silence
from safekeeper.streams import StreamElement


class Numbered:
    """An inlet with the elements up to a number, in batches of a size; it knows what was acknowledged."""

    def __init__(self, upto, size):
        self.left, self.acknowledged = list(range(1, upto + 1)), 0
        self.size = size

    def read(self, timeout=None):
        taken, self.left = self.left[: self.size], self.left[self.size :]
        return [StreamElement(number, b"%d" % number) for number in taken]

    def acknowledge(self, upto):
        self.acknowledged = max(upto, self.acknowledged)

    def close(self):
        self.left = []


def test_of_several_copies_the_first_is_taken_and_nobody_is_told_more_than_it_has_sent():
    inlets = [Numbered(100, 7), Numbered(40, 11)]
    merged = FirstCopy(inlets, 0)
    try:
        found = []
        while merged.received < 140:
            found += merged.read(timeout=1.0)
        assert [element.number for element in found] == list(range(1, 101))
        merged.acknowledge(90)
        assert [inlet.acknowledged for inlet in inlets] == [90, 40]
    finally:
        merged.close()


@pytest.mark.parametrize(("arm", "times"), [("none", 1), ("none-active", 2), ("active-active", 4)])
def test_every_copy_sends_to_every_copy_and_the_sink_is_right(tmp_path, arm, times):
    with CopiedPair(str(tmp_path), 300, arm) as pair:
        pair.wait_for(100)
        received, _, _ = pair.finish()
        assert received / pair.sent == pytest.approx(times, rel=0.05)


def test_a_copy_is_killed_and_the_other_goes_on(tmp_path):
    with CopiedPair(str(tmp_path), 300, "active-active") as pair:
        pair.wait_for(50)
        pair.kill("b0")
        pair.wait_for(pair.sent + 100)
        pair.kill("a1")
        pair.wait_for(pair.sent + 100)


def test_a_passive_standby_is_started_again_and_the_sink_is_right(tmp_path):
    with CopiedPair(str(tmp_path), 300, "passive", 0.1) as pair:
        pair.wait_for(50)
        pair.kill("b0")
        pair.start("b0")
        pair.wait_for(pair.sent + 100)


def sent(arm, received, nbytes=0):
    return SentMessages(arm, 1000.0, 1000, received, nbytes)


def test_goals_want_what_the_paper_counts():
    right = [sent("none", 1000), sent("none-active", 2000), sent("active-active", 4000), sent("passive", 1000, 50_000)]
    assert [goal.met for goal in standby_messages.goals(right, [])] == [True, True, True]
    wrong = [sent("none-active", 1800), sent("active-active", 4300), sent("passive", 1000, 100_000)]
    assert [goal.met for goal in standby_messages.goals(wrong, [])] == [False, False, False]
    steady = [(at / 100, at + 200) for at in range(-200, 300)]
    gap = [(at, seen) for at, seen in steady if not 0 < at < 0.5]
    for arrivals, met in ((steady, True), (gap, False)):
        (goal,) = standby_messages.goals([], [Silence("active-active", arrivals)])
        assert goal.met is met


def test_a_silence_is_plotted_with_both_of_its_sides():
    arrivals = [(at / 100, at + 300) for at in range(-200, 200) if not 0 < at < 50]
    shown = list(Silence("passive", arrivals).shown())
    assert len(shown) < 50
    assert all(pair in shown for pair in ((2.0, 200.0), (2.5, 250.0)))


def test_a_page_has_both_figures(tmp_path):
    found = [sent(arm, 1000) for arm in COPIES]
    silences = [Silence("passive", [(-1.0, 5), (-0.5, 7), (0.5, 9)])]
    standby_messages._plot(found, silences, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2
    assert "active-active, paper" in page
