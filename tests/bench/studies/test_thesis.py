from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from safekeeper.bench.harness.goals import goals_in
from safekeeper.bench.harness.interleave import Spread
from safekeeper.bench.studies import thesis
from safekeeper.bench.studies.thesis import EXPERIMENTS, Finding, ThesisScale, ThesisSite
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
    (("4.1", 1), ("4.2", 1), ("4.5", 2), ("4.7", 1), ("5.1", 0)),
    ids=lambda value: str(value),
)
def test_every_experiment_prints_its_rows_and_a_verdict_or_why_there_is_none(experiment, verdicts, tmp_path, capsys):
    finding = EXPERIMENTS[experiment](ThesisSite(tmp_path), TINY)
    finding.print()
    printed = capsys.readouterr().out
    assert finding.title in printed
    assert f"thesis: {finding.thesis}" in printed
    assert finding.table.row_count == 2
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
    found = thesis._most_without_drops
    monkeypatch.setattr(thesis, "_most_without_drops", lambda *given: found(*given) * 1e6)
    monkeypatch.setattr(thesis, "RATE", 1e6)
    finding = EXPERIMENTS["4.5"](ThesisSite(tmp_path), TINY)
    assert any("did not keep the rate" in remark for remark in finding.remarks)
    assert not any("writes" in goal.text for goal in finding.goals)


def test_a_server_that_cannot_be_had_is_named_and_the_others_are_measured(tmp_path, monkeypatch):
    def only_redis(name):
        if name != "redis":
            raise DevError("no java")
        return SimpleNamespace(RedisServer=lambda *_, **__: nullcontext(SimpleNamespace(url="redis://there")))

    monkeypatch.setattr(thesis, "_dev", only_redis)
    with thesis.started_servers(tmp_path) as site:
        assert site == ThesisSite(tmp_path, ["redis://there"], ["hbase is not measured: no java"])
