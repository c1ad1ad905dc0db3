"""The README's main job on the other stores, killed half-way as well: on Redis every day, on all in the long form."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from safekeeper.dev.hbase import HBaseServer
from safekeeper.dev.redis import RedisServer
from safekeeper.spark.demo.__main__ import Demo

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store of a kind, on a server if it needs one."""
    if kind == "redis":
        with RedisServer(folder, appendonly="yes", appendfsync="always") as redis:
            yield redis.url
    elif kind == "hbase":
        with HBaseServer(folder) as hbase:
            yield hbase.url
    else:
        yield f"{kind}://{folder}"


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ("redis", "hbase", "lmdb", "objects+file") if LONG else ("redis",))
def test_a_driver_that_is_killed_half_way_counts_exactly_on_the_other_stores_too(environment, tmp_path, kind):
    said = io.StringIO()
    with store(kind, tmp_path / "store") as url:
        (tmp_path / "demo").mkdir()
        assert Demo(tmp_path / "demo", url, Console(file=said, width=200), files=6).run(), said.getvalue()
    assert "kill -9" in said.getvalue()
    assert f"commits in {url}" in said.getvalue()
