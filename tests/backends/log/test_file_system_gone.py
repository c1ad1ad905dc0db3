"""A file system that is shut down under its users and mounted again, without a restart of the machine. As root."""

import os
import shutil
import subprocess
import sys

import pytest

from .gone import CANNOT


def run_on(kind: str, folder: str, call: str) -> str:
    """Run a function of `gone` on a file system of its own; what it has said."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) to mount with")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = ["unshare", "--mount", sys.executable, "-P", "-m", "tests.backends.log.gone", kind, folder, call]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode == CANNOT or "unshare" in ran.stderr:
        pytest.skip(f"cannot be mounted here: {ran.stderr.strip().splitlines()[-1:]}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.crash
@pytest.mark.parametrize("kind", ("ext4", "xfs"))
def test_a_file_system_that_is_shut_down_is_an_error_and_no_signal(kind, tmp_path):
    assert run_on(kind, str(tmp_path), "errors_instead_of_signals").endswith("fine\n")


@pytest.mark.crash
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ("ext4", "xfs"))
def test_what_was_acknowledged_is_there_when_a_file_system_comes_back(kind, tmp_path):
    said = run_on(kind, str(tmp_path), "old_heads")
    assert "heads old" in said, "no head was older than its segments: this has shown nothing"
