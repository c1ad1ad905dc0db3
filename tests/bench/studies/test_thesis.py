import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from safekeeper.bench.harness.goals import goals_in
from safekeeper.bench.harness.interleave import Spread
from safekeeper.bench.studies.thesis import __main__ as command
from safekeeper.bench.studies.thesis import disk_model, figures
from safekeeper.bench.studies.thesis.__main__ import EXPERIMENTS
from safekeeper.bench.studies.thesis.disk_model import THESIS_DISK
from safekeeper.bench.studies.thesis.finding import Finding, ThesisScale, ThesisSite
from safekeeper.dev.process import DevError

TINY = ThesisScale(
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
    ("experiment", "verdicts"),
    (("3.4", 0), ("4.1", 1), ("4.2", 1), ("4.5", 2), ("4.7", 1), ("table-5.1", 0)),
    ids=lambda value: str(value),
)
def test_every_experiment_prints_its_rows_and_a_verdict_or_why_there_is_none(experiment, verdicts, tmp_path, capsys):
    finding = EXPERIMENTS[experiment](ThesisSite(tmp_path), TINY)
    finding.print()
    printed = capsys.readouterr().out
    assert finding.title in printed
    assert f"thesis: {finding.thesis}" in printed
    assert finding.table.row_count == (4 if experiment == "3.4" else 2)
    if experiment not in ("4.5",):
        beside = r"^beside: (?:table )?\d\.\d .*: .* thesis [\d.e+]+: (?:more|less|as in the thesis), "
        assert re.search(beside, printed, re.MULTILINE)
    assert len(list(goals_in(printed))) + printed.count("no verdict") == verdicts
    assert "nan" not in printed


@pytest.mark.parametrize(
    ("spread", "met"),
    ((Spread(5, 4, 6), True), (Spread(2, 1, 2.5), False), (Spread(5, 1, 9), None), (Spread(2, 1, 9), None)),
)
def test_rounds_that_disagree_about_a_goal_give_no_verdict(spread, met):
    finding = Finding("title", "thesis")
    finding.expect("fast", spread, 3)
    assert [goal.met for goal in finding.goals] == ([] if met is None else [met])
    assert ["no verdict" in remark for remark in finding.remarks] == ([True] if met is None else [])


def test_a_store_that_does_not_keep_the_rate_gets_no_verdict_on_its_latency(tmp_path, monkeypatch):
    found = figures._most_without_drops
    monkeypatch.setattr(figures, "_most_without_drops", lambda *given: found(*given) * 1e6)
    monkeypatch.setattr(figures, "RATE", 1e6)
    finding = EXPERIMENTS["4.5"](ThesisSite(tmp_path), TINY)
    assert any("did not keep the rate" in remark for remark in finding.remarks)
    assert not any("writes" in goal.text for goal in finding.goals)


def test_a_server_that_cannot_be_had_is_named_and_the_others_are_measured(tmp_path, monkeypatch):
    def only_redis(name):
        if name != "redis":
            raise DevError("no java")
        return SimpleNamespace(RedisServer=lambda *_, **__: nullcontext(SimpleNamespace(url="redis://there")))

    monkeypatch.setattr(command, "_dev", only_redis)
    with command.started_servers(tmp_path) as site:
        assert site == ThesisSite(tmp_path, ["redis://there"], ["hbase is not measured: no java"])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Spread(8, 7, 9), "10 s, thesis 4: more, 2 x; ours is newer"),
        (Spread(1, 1, 1), "thesis 4: less, 0.25 x; ours is older"),
        (Spread(4, 3, 5), "thesis 4: as in the thesis, 1 x"),
    ],
    ids=["more", "less", "as in the thesis"],
)
def test_a_number_stands_beside_the_thesis_with_the_reason_in_either_direction(found, says):
    finding = Finding("title", "thesis")
    finding.beside("this", found, 4, "s", more="ours is newer", less="ours is older")
    (remark,) = finding.remarks
    assert remark.endswith(says.removeprefix("10 s, "))
    finding.expect("that", Spread(2, 1, 3), 4, more="ours is newer", less="ours is older")
    assert str(finding.goals[0]) == "goal not met: that: 2.00 (1.00-3.00) x, thesis 4 x; ours is older"


def test_the_disk_model_says_what_the_thesis_says_of_its_disk():
    """A file for each state costs a seek more; reads cost the same; of a large state an append pays a seek a track."""
    assert THESIS_DISK.file_per_id(1024) / THESIS_DISK.append(1024) == pytest.approx(3.02, abs=0.05)
    assert THESIS_DISK.file_per_id(1 << 30) / THESIS_DISK.append(1 << 30) == pytest.approx(0.37, abs=0.03)
    assert THESIS_DISK.read(1024) == THESIS_DISK.file_per_id(1024)


def test_this_disk_is_probed(tmp_path):
    disk = disk_model.probe(tmp_path)
    assert disk.rotation > 0
    assert disk.seek >= 0
    assert disk.bytes_per_second > 1e6
    assert not list(tmp_path.iterdir())
