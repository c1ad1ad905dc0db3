"""What the study of Peace on a shaped network makes of what it is told."""

from safekeeper.bench.lab.peace_site import Setting
from safekeeper.bench.lab.spark_site import times_of_writers
from safekeeper.bench.studies.peace import SCENARIOS, limits_of, measure, table_of
from safekeeper.errors import Unavailable


def test_a_writers_times_are_those_of_its_chunks():
    chunks = [("aa-1-0", 10.0, 11.0), ("bb-1-0", 12.0, 13.5), ("aa-1-1", 11.0, 14.0)]
    first, second = times_of_writers(chunks)
    assert (first.submitted, first.started, first.done) == (0, 0, 4)
    assert (second.submitted, second.started, second.done) == (0, 2, 3.5)
    assert times_of_writers([]) == []


class Stuck:
    """A site that has two good rounds."""

    def __init__(self):
        self.runs = 0

    def run(self, arm, checkpoints):
        self.runs += 1
        if self.runs > 5:
            raise Unavailable("the machine is too busy")
        return Run()


class Run:
    own_start = submission = everything = 1.0


def test_a_round_that_gets_stuck_is_the_last_and_does_not_count(capsys):
    rounds = measure(Stuck(), Setting(), SCENARIOS[0], ["stock", "Peace"], rounds=5, seconds=100)
    assert [len(runs) for runs in rounds.runs.values()] == [2, 2]
    assert "round 3: given up: the machine is too busy" in capsys.readouterr().out
    assert table_of(rounds).row_count == 2


def test_through_spark_there_are_two_goals_beside_stock():
    assert [(name, most) for name, _, most in limits_of(SCENARIOS[0], "spark")] == [("own start", 0.6), ("all", 1.1)]
    assert len(list(limits_of(SCENARIOS[0], "hdfs"))) == 5
