"""The service of `docs/operators.md` runs as it stands there, is killed all the time, and counts exactly."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from safekeeper.operators.demo import counter
from safekeeper.operators.demo.__main__ import Dashboard, ServicesDemo
from safekeeper.streams import StreamElement

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def test_the_page_begins_with_the_service_as_it_runs():
    first = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert first == Path(counter.__file__).read_text()


@pytest.mark.crash
def test_the_service_counts_exactly_while_everything_is_killed(tmp_path):
    console = Console(highlight=False)
    demo = ServicesDemo(tmp_path, console, words=3_000)
    demo.chaos.pause = (0.1, 0.8)
    assert demo.run()
    assert demo.chaos.done.total() >= 1


class Counts:
    """An inlet that gives what it was told to."""

    def __init__(self, *elements):
        self._pages = [elements]
        self.acknowledged = []

    def read(self, timeout=None):
        return self._pages.pop() if self._pages else ()

    def acknowledge(self, upto):
        self.acknowledged.append(upto)


@pytest.mark.parametrize(
    ("counts", "wrong"), [((1, 2, 3), []), ((1, 3), ["to: 3 after 1"]), ((1, 2, 2), ["to: 2 after 2"])]
)
def test_the_dashboard_notices_what_is_lost_or_comes_twice(counts, wrong):
    inlet = Counts(*(StreamElement(number, b"%d" % count, b"to") for number, count in enumerate(counts, 1)))
    dashboard = Dashboard(inlet)
    while not inlet.acknowledged:
        pass
    dashboard.close()
    assert dashboard.wrong == wrong
