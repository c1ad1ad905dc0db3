"""The study of LangGraph's savers runs, on short threads and with a real PostgreSQL, and says what it has found."""

from __future__ import annotations

import subprocess
import sys


def test_our_saver_is_compared_with_those_for_sqlite_and_postgresql():
    command = [sys.executable, "-m", "safekeeper.bench.studies.langgraph_savers"]
    command += ["--turns", "3", "--steps", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    for title in ("3 turns", "5 steps"):
        for what in ("time a step", "reading the latest state", "bytes"):
            assert f": {title}: {what} at most" in done.stdout
    assert done.stdout.count("Postgres saver") == 2
