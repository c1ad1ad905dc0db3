"""The study that shows what the cleaner's setting buys and costs, at its small size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_the_extent_stays_below_its_bound_and_all_is_shown(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "safekeeper.bench.studies.spark_cleaner", "--quick", "--limits", "1.5"]
    command += ["--folder", str(tmp_path), "--html", str(page)]
    wide = os.environ | {"COLUMNS": "110"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=wide)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +([\d.]+) +([\d.]+) \(([\d.]+)-([\d.]+)\)", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["1.5"] * 2
    for clean_at, *extents in rows:
        assert 1 < max(map(float, extents)) <= 2 * float(clean_at) - 1
    assert page.read_text().count("<svg") == 5
