"""The README's main job, on a shorter stream: the driver is killed with SIGKILL and the counts are exact."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from safekeeper.spark.demo.__main__ import Demo, DemoDriver, DriverFailed


@pytest.mark.timeout(900)  # three processes start, twice
def test_a_driver_that_is_killed_half_way_counts_exactly_when_it_is_started_again(environment, ours, tmp_path):
    url = next(value for name, value in ours().items() if name.endswith("url"))
    said = io.StringIO()
    assert Demo(tmp_path, url, Console(file=said, width=200), files=6).run(), said.getvalue()
    assert "kill -9" in said.getvalue()
    assert "counts are exact" in said.getvalue()
    assert f"commits in {url}" in said.getvalue()


def test_a_driver_that_fails_by_itself_is_reported_with_what_it_said(environment, tmp_path):
    driver = DemoDriver(tmp_path, "fil:///x")
    assert list(driver.batches()) == []
    for _ in range(2):  # once by whoever follows it to its end, once by whoever has started it
        with pytest.raises(DriverFailed, match="did you mean 'file'"):
            driver.check()
