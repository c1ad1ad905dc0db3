import pytest

from safekeeper.bench.goals import goals_in
from safekeeper.bench.thesis import EXPERIMENTS, Scale, Site

TINY = Scale(
    rounds=1,
    threads=(1, 2),
    operations=30,
    events=60,
    rebuilt_ids=(10, 20),
    ids=(10, 20),
    seconds=0.2,
    small_writes=1000,
)


@pytest.mark.parametrize(
    ("experiment", "rows", "goals"), (("4.1", 2, 1), ("4.2", 2, 1), ("4.5", 2, 2), ("4.7", 2, 1), ("5.1", 2, 0))
)
def test_every_experiment_runs_and_prints_its_rows_and_goals(experiment, rows, goals, tmp_path, capsys):
    finding = EXPERIMENTS[experiment](Site(tmp_path, ()), TINY)
    finding.print()
    printed = capsys.readouterr().out
    assert finding.title in printed
    assert f"thesis: {finding.thesis}" in printed
    assert finding.table.row_count == rows
    assert len(list(goals_in(printed))) == goals
    assert "nan" not in printed
