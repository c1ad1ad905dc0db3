"""YCSB's own client and ours do the same, as far as chi-square can tell; and it can tell."""

from collections import Counter

import numpy as np
import pytest

from safekeeper.bench.studies.ycsb_agreement import SIGNIFICANT, Ages, ChiSquare, Observed, compare, observe
from safekeeper.bench.ycsb.exporters import ExportRow
from safekeeper.bench.ycsb.generators import fnv64_of


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"), ((3.841, 1, 0.05), (18.307, 10, 0.05), (135.807, 100, 0.01), (90.0, 100, 0.753))
)
def test_p_is_that_of_the_tables(statistic, freedom, p):
    assert ChiSquare(statistic, freedom).p == pytest.approx(p, rel=0.06)


def test_samples_of_one_distribution_agree_and_others_do_not():
    random = np.random.default_rng(14)
    one, same, other = (Counter(random.geometric(p, 20_000).tolist()) for p in (0.02, 0.02, 0.022))
    assert ChiSquare.of(one, same).p >= SIGNIFICANT
    assert ChiSquare.of(one, other).p < SIGNIFICANT
    assert ChiSquare.of({"READ": 5000}, {"READ": 5000}).p == 1.0


def test_the_statistic_is_that_of_a_table_of_two_rows():
    found = ChiSquare.of({"a": 60, "b": 40, "rare": 1, "rarer": 1}, {"a": 40, "b": 60, "rare": 1})
    assert found.freedom == 2
    assert ChiSquare.of({"a": 60, "b": 40}, {"a": 40, "b": 60}).statistic == pytest.approx(8.0)


def test_records_count_by_how_many_are_newer():
    ages = Ages(3, 100, only_reads=True)

    def see(command, number):
        ages.see(b'1.0 [0 127.0.0.1:5] "%s" "user%d" "v"\n' % (command, fnv64_of(number)))

    see(b"GET", 2)
    see(b"SET", 3)  # an insert
    see(b"GET", 2)
    see(b"SET", 2)  # the second half of a read-modify-write
    ages.see(b'1.0 [0 lua] "HSET" "user%d"\n' % fnv64_of(0))
    assert ages.counts == {0: 1, 1: 1}


def test_a_difference_is_a_goal_that_is_not_met():
    def observed(reads, ages):
        return Observed([ExportRow("READ", "Operations", reads), ExportRow("UPDATE", "Operations", 1000)], ages)

    uniform, skewed = Counter(dict.fromkeys(range(20), 100)), Counter({0: 1050, **dict.fromkeys(range(1, 20), 50)})
    found = {
        "one": {"YCSB": observed(1000, uniform), "safekeeper": observed(1100, skewed)},
        "two": {"YCSB": observed(1000, skewed), "safekeeper": observed(3000, skewed)},
    }
    verdicts = [goal.met for goal in compare(found)]
    assert verdicts == [True, False, False, True, True, False]


@pytest.mark.timeout(600)
def test_ycsbs_own_client_and_ours_agree_on_one_redis():
    goals = list(compare(observe(2_000)))
    assert len(goals) == 15
    assert [str(goal) for goal in goals if not goal.met] == []
