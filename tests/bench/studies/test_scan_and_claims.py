"""The studies of scans, of claims and of single reads run, on few ids, and say what they have found."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("store", ("log", "lmdb", "file"))
def test_a_scan_and_a_recovery_are_compared_with_a_loop_by_hand(store):
    said = run("scan_overhead", "--only", store, "--ids", "300", "--rounds", "1")
    for what in ("scan", "recover"):
        assert f"{store}, {what} of 300 states: safekeeper at least 0." in said


def test_writes_with_a_check_are_compared_with_plain_ones():
    said = run("claims_overhead", "--only", "lmdb", "--rounds", "1", "--seconds", "0.001")
    for arm in ("plain", "a check after each write", "a check after 10 writes"):
        assert f"│ {arm} " in said


def test_single_reads_are_compared_with_a_file_each():
    said = run("single_reads", "--quick", "--rounds", "1")
    for arm in ("own", "one writer", "three writers"):
        assert f"single reads of 1 KB: {arm} at least 1 times one file per id: " in said


def run(study: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"safekeeper.bench.studies.{study}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
