"""What the study of sweeping checkpoints makes of what it has counted."""

import pytest

from safekeeper.bench.studies import sweeping
from safekeeper.bench.studies.sweeping import ARMS, Swept


def counted(arm, nbytes, spent=0.1):
    return Swept(arm, 0.5, 10.0, 1000, 10, nbytes, nbytes // 100, spent)


def test_goals_compare_sweeping_with_both_others():
    found = [counted(arm, nbytes) for arm, nbytes in zip(ARMS, (90_000, 80_000, 8_000, 7_000), strict=True)]
    bytes_goal, _, time_goal, messages_goal = sweeping.goals(found)
    assert (bytes_goal.met, time_goal.met, messages_goal.met) == (True, False, True)
    assert "0.100 of the others' bytes" in str(bytes_goal)
    found[1] = counted("individual", 70_000)
    assert not sweeping.goals(found)[0].met


def test_a_swept_block_is_compared_with_what_its_reader_s_capture_predicts():
    captures = [
        ("o7", 1.0, 20),
        ("o6", 1.01, 50),
        ("o5", 1.03, 80),
        ("o7", 1.5, 20),
        ("o6", 1.51, 50),
        ("o6", 9.0, 5000),
    ]
    elements, tau = sweeping.blocks_and_taus(captures, 2.0)
    assert (elements, tau) == (60, pytest.approx(0.04 / 3))
    found = [counted(arm, 1000) for arm in ARMS]
    for behind, met in ((60, True), (90, False)):
        found[2] = Swept("sweep", 0.5, 10.0, 30_000, 10, 1000, 10, 0.1, behind, tau)
        assert found[2].predicted == pytest.approx(60)
        assert sweeping.goals(found)[1].met is met


def test_a_page_has_a_plot_of_each_figure(tmp_path):
    found = [counted(arm, 1000 * n) for n, arm in enumerate(ARMS, 1)]
    sweeping._plot(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == page.count("Paper: ") == len(sweeping.FIGURES)


def test_the_oracle_of_the_totals_goes_by_what_the_reader_had_acknowledged():
    def total_and_oracle(arm):
        captures = [("o7", 1.0, 20), ("o6", 1.004, 31), ("o7", 1.5, 20), ("o6", 1.504, 500), ("o6", 1.6, 50)]
        return sweeping.total_and_oracle(arm, captures, 1000.0, 2.0)

    swept, timed = total_and_oracle("sweep"), total_and_oracle("together")
    assert swept == (
        570,
        pytest.approx(20 + 24 + 116),
    )  # the state; 4 ms after its reader's; 96 after its own
    assert timed == (
        570,
        pytest.approx(20 + 520 + 116),
    )  # no answer can have come: 0.5 s after its own


@pytest.mark.parametrize(("total", "met"), [(74, False), (75, True), (130, True), (131, False)])
def test_a_total_far_from_the_oracle_is_not_met(total, met):
    one = Swept("sweep", 0.5, 1.0, 1000, 1, 1, 1, 1.0, total=total, oracle=100.0)
    assert next(sweeping.oracle_goals([one])).met is met
