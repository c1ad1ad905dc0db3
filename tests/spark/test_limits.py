"""The limits of memory and disk as a user sees them: a query fails with a sentence, and goes on when that is mended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from safekeeper.spark import PREFIX
from safekeeper.spark.build import spark_home, spark_version

HERE = Path(__file__).parent
ROWS, PAD = 80_000, 100


@pytest.mark.timeout(900)
def test_a_query_beyond_its_budget_or_its_disk_says_so_and_goes_on_when_that_is_mended(
    environment, small_disk, tmp_path
):
    before, disk = small_disk("256m")
    command = [*before, sys.executable, str(HERE / "limited.py"), str(tmp_path), str(disk)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert ended.returncode == 0, ended.stderr
    budget, first, full, second, third = map(json.loads, ended.stdout.splitlines())
    assert "not enough memory to change the state of" in budget["refused"]
    assert f"raise {PREFIX}memoryBytes" in budget["refused"]
    assert "there is no room for it in Spark's local folders" in full["refused"]
    assert "(No space left on device): make room there, or set spark.local.dir" in full["refused"]
    for batches, found in enumerate((first, second, third), 1):
        keys = ROWS + (batches - 1) * ROWS // 2
        assert found["state"] == [keys, batches * ROWS, keys * PAD]  # every row counted once, none lost
        assert found["disk"] >= keys * PAD
        assert found["memory"] >= 12 * keys
        if spark_version(spark_home()) >= "4.1":
            assert found["accounted"] >= found["memory"]  # of all partitions and queries in the JVM
