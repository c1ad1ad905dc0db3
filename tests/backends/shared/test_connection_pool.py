"""Connections that wait for their next use."""

from safekeeper.backends.shared.connection_pool import Idle


class Line:
    def __init__(self, *, good=True):
        self.good = good
        self.closed = False

    def is_good(self):
        return self.good

    def close(self):
        self.closed = True


def test_the_one_that_was_used_last_is_used_next():
    idle, first, last = Idle(5), Line(), Line()
    idle.keep(first)
    idle.keep(last)
    assert idle.take() is last
    assert idle.take() is first
    assert idle.take() is None
    assert not first.closed


def test_when_one_has_gone_bad_those_that_were_idle_for_longer_are_not_asked_one_by_one():
    idle, older, broken = Idle(5), Line(), Line(good=False)
    older.is_good = None  # asking would fail
    idle.keep(older)
    idle.keep(broken)
    assert idle.take() is None
    assert (older.closed, broken.closed) == (True, True)


def test_no_more_are_kept_than_was_asked_for():
    idle, lines = Idle(2), [Line() for _ in range(3)]
    for line in lines:
        idle.keep(line)
    assert len(idle) == 2
    assert [line.closed for line in lines] == [False, False, True]


def test_closing_closes_those_that_are_kept_and_those_that_come_back_later():
    idle, kept, at_work = Idle(2), Line(), Line()
    idle.keep(kept)
    idle.close()
    assert kept.closed
    idle.keep(at_work)
    assert at_work.closed
    assert idle.take() is None
