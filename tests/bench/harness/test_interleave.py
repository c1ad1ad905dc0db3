import json
import sys

import pytest

from safekeeper.bench.harness.interleave import Spread, interleave, report


def test_every_arm_runs_once_a_round_in_rotated_order():
    order = []
    arms = {name: (lambda name=name: order.append(name) or 1.0) for name in "abc"}
    result = interleave(arms, 3, "title", warm_up=False)
    assert order == [*"abc", *"bca", *"cab"]
    assert result.rates == {"a": [1.0] * 3, "b": [1.0] * 3, "c": [1.0] * 3}


def test_a_warm_up_round_does_not_count():
    numbers = iter([100.0, 1.0, 2.0])
    assert interleave({"a": lambda: next(numbers)}, 2, "title").rates == {"a": [1.0, 2.0]}


def test_ratios_are_taken_round_by_round():
    rates = {"fast": iter([2.0, 20.0, 200.0]), "slow": iter([1.0, 10.0, 50.0])}
    arms = {name: (lambda it=it: next(it)) for name, it in rates.items()}
    result = interleave(arms, 3, "title", warm_up=False)
    assert result.ratio("fast", "slow") == Spread(2.0, 2.0, 4.0)
    assert result.rate("slow") == Spread(10.0, 1.0, 50.0)


def test_a_report_prints_each_arm_and_keeps_all_numbers(tmp_path, capsys):
    results = [interleave({"a": lambda: 5.0, "b": lambda: 1.0}, 2, name) for name in ("first", "second")]
    report(results, "a", tmp_path / "out.json")
    printed = capsys.readouterr().out
    assert "first" in printed
    assert "5.00 (5.00-5.00)" in printed
    kept = json.loads((tmp_path / "out.json").read_text())
    assert [entry["title"] for entry in kept] == ["first", "second"]
    assert kept[1]["rates"] == {"a": [5.0, 5.0], "b": [1.0, 1.0]}


@pytest.mark.parametrize(
    "name", ("lmdb", "sqlite", "rocksdb", "file", *(["leveldb"] if sys.version_info < (3, 13) else []))
)
def test_every_peer_keeps_what_it_is_given(name, tmp_path):
    from safekeeper.bench.ycsb.peers import PEERS

    arm = PEERS[name](tmp_path / "store")
    arm.save(b"a", b"1")
    arm.save_all([(b"b", b"2"), (b"a", b"3")])
    assert [arm.fetch(b"a"), arm.fetch(b"b"), arm.fetch(b"c")] == [b"3", b"2", None]
    arm.close()


def test_a_goal_is_met_by_the_median_and_shows_the_spread():
    rates = {"fast": iter([3.0, 4.0, 1.0]), "slow": iter([1.0, 1.0, 1.0])}
    arms = {name: (lambda it=it: next(it)) for name, it in rates.items()}
    result = interleave(arms, 3, "title", warm_up=False)
    assert str(result.at_least(3, "fast", "slow")) == ("goal met: title: fast at least 3 times slow: 3.00 (1.00-4.00)")
    assert not result.at_least(3.1, "fast", "slow").met
