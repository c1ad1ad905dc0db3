"""The study of a durable save runs, on few saves, and says what each step takes."""

from __future__ import annotations

import subprocess
import sys


def test_it_goes_from_the_bare_sync_to_the_keeper_in_steps(tmp_path):
    command = [sys.executable, "-m", "safekeeper.bench.studies.durable_save", "--folder", str(tmp_path)]
    done = subprocess.run([*command, "--rounds", "1", "--saves", "3"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for arm in ("sync", "sqlite3", "log", "keeper", "keeper, by a worker"):
        assert f"\n{arm}: " in done.stdout
    for step in ("log beyond sync", "keeper beyond log", "keeper, by a worker beyond keeper"):
        assert f"\n{step}: " in done.stdout
