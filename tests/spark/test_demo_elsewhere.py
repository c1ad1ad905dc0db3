"""The README's main job on the other stores, killed half-way as well: on Redis every day, on all in the long form."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from safekeeper.spark.demo.__main__ import Demo

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ("redis", "hbase", "lmdb", "objects+file") if LONG else ("redis",))
def test_a_driver_that_is_killed_half_way_counts_exactly_on_the_other_stores_too(environment, tmp_path, url_on, kind):
    said = io.StringIO()
    url = url_on(kind)
    assert Demo(tmp_path, url, Console(file=said, width=200), files=6).run(), said.getvalue()
    assert "kill -9" in said.getvalue()
    assert f"commits in {url}" in said.getvalue()
