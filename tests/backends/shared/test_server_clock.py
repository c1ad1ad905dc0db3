"""The clock of `hbase:` and `hdfs:`, on a server whose clock and network are made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper import Unavailable
from safekeeper.backends.shared import server_clock as clock
from safekeeper.backends.shared.server_clock import Clock, ClockBounds, Reading


class World:
    """True time, a server's clock that is ahead of it, and a network that takes as long as it is told to."""

    def __init__(self, monkeypatch, ahead):
        self.time = 0
        self.ahead = ahead
        self.slept = 0
        monkeypatch.setattr(clock, "time", self)  # there alone: threads that other tests have left behind sleep, too

    def sleep(self, seconds):
        slept = round(seconds * 1_000_000) + 1
        self.slept += slept
        self.time += slept

    def pass_on(self, delay):
        self.time += delay

    def server_time(self):
        return self.time + self.ahead


class Host:
    """A handle's host: its own clock shows something else than the others'."""

    def __init__(self, world, monkeypatch, behind, delays):
        self.world, self.behind, self._delays = world, behind, delays
        self._patch = monkeypatch
        self.clock = Clock(self._read)

    def _now(self):
        return self.world.time - self.behind

    def _read(self):
        sent = self._now()
        self.world.pass_on(self._delays())
        shown = self.world.server_time() // 1000 * 1000
        self.world.pass_on(self._delays())
        return Reading(sent, self._now(), shown)

    def write(self):
        """A write from its beginning to its return; its time."""
        self._patch.setattr(clock, "now", self._now)
        timestamp = self.clock.next()
        self.world.pass_on(self._delays() + self._delays())
        self.clock.settle(timestamp)
        return timestamp


@given(
    ahead=st.integers(-(10**12), 10**12),
    behind=st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3),
    delays=st.lists(st.integers(1, 20_000), min_size=1, max_size=20),
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12_000_000)), min_size=2, max_size=30),
)
def test_a_write_that_begins_after_another_returned_has_a_later_time(ahead, behind, delays, turns):
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, 10**13 + ahead)
        drawn = iter(delays * 10_000)
        hosts = [Host(world, patch, lag, lambda: next(drawn)) for lag in behind]
        times = []
        for who, pause in turns:
            world.pass_on(pause)
            times.append(hosts[who].write())
        assert times == sorted(set(times))


def test_a_network_that_is_always_as_quick_leaves_nothing_to_wait_for(monkeypatch):
    world = World(monkeypatch, 10**13)
    host = Host(world, monkeypatch, 0, lambda: 400)
    host.write()
    world.slept = 0
    for _ in range(1000):
        host.write()
    assert world.slept < 0.1 * 1000 * 800


def test_a_server_that_is_slow_at_first_is_soon_waited_for_no_more(monkeypatch):
    world = World(monkeypatch, 10**13)
    delays = iter([30_000] * 16)
    host = Host(world, monkeypatch, 0, lambda: next(delays, 400))
    for _ in range(150):
        host.write()
    world.slept = 0
    for _ in range(1000):
        host.write()
    assert world.slept < 0.1 * 1000 * 800


def test_bounds_contain_the_truth_and_get_narrower():
    first, second = ClockBounds.of(Reading(100, 900, 5000)), ClockBounds.of(Reading(1000, 1500, 6000))
    assert (first.low, first.high) == (4100, 5900)
    both = first.narrowed(second)
    assert (both.low, both.high) == pytest.approx((4500, 5900), abs=1)
    later = both.later(both.at + 1_000_000)
    assert later.low < both.low
    assert later.high > both.high


@pytest.mark.parametrize("jump", (-60_000_000, 60_000_000), ids=("back", "forward"))
def test_a_server_whose_clock_was_set_is_followed_but_times_never_go_back(monkeypatch, jump):
    world = World(monkeypatch, 10**13)
    host = Host(world, monkeypatch, 0, lambda: 500)
    before = host.write()
    world.ahead += jump
    world.pass_on(11_000_000)
    world.slept = 0
    after = host.write()
    assert after > before
    assert world.slept < 1_000_000
    if jump > 0:
        assert after >= world.server_time() - 10_000


def test_a_time_can_be_asked_to_be_later_than_another(monkeypatch):
    host = Host(World(monkeypatch, 10**13), monkeypatch, 0, lambda: 500)
    seen = host.write() + 5_000
    assert host.clock.next(after=seen) > seen


def test_a_clock_that_cannot_be_read_is_unavailable():
    with pytest.raises(Unavailable, match="the server's clock could not be read"):
        Clock(lambda: None).next()
