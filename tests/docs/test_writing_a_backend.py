"""The backend of docs/writing-a-backend.md, made by doing what the page says, passes the kit."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from safekeeper.testing import BackendContract

PAGE = (Path(__file__).parents[2] / "docs" / "writing-a-backend.md").read_text()


@pytest.fixture
def project(tmp_path):
    """A folder with the files of the page, and its backend installed below it."""
    for name, text in re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    offline = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", "installed", "."]
    installed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    return tmp_path


def run(project, *arguments):
    path = os.pathsep.join([str(project / "installed"), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(900)  # it syncs a few thousand times
def test_the_backend_of_the_page_passes_the_whole_kit(project):
    outcome = run(project, "-m", "pytest", "-q", "-W", "error", "--strict-markers", "test_sqlite.py")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    passed = re.search(r"(\d+) passed in", outcome.stdout)  # and none skipped
    assert passed, outcome.stdout
    assert int(passed[1]) > 100


def test_the_last_example_opens_it_by_its_url(project, tmp_path):
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    example = example.replace("/tmp/state.db", f"{tmp_path}/state.db")
    outcome = run(project, "-c", f"{example}\n    print(store.read([CheckpointId('WordCounter', b'foo')]))")
    assert outcome.stdout == "[b'41']\n", outcome.stderr


def test_every_test_that_the_page_names_exists():
    names = re.findall(r"`(test_\w+)`", PAGE)
    assert len(names) > 10
    assert [name for name in names if not hasattr(BackendContract, name)] == []


@pytest.mark.parametrize("name", ("examples", "long_examples", "kills", "long_kills"))
def test_the_defaults_on_the_page_are_the_defaults(name):
    (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{name}`" in line]
    names, defaults = ([cell.strip("` ") for cell in part.split(",")] for part in row.split("|")[1:3])
    assert int(defaults[names.index(name)]) == getattr(BackendContract, name)
