"""mypy --strict and pyright accept the examples of the docs as they stand: the Python of a page is one module.

Tests, which pytest calls with fixtures, have no types."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safekeeper

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = Path(safekeeper.__file__).parent.parent
PATH = "" if SOURCES.name == "site-packages" else f"mypy_path = {SOURCES}\n"  # it does not see editable installs


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """A folder with the Python of each page that has any, and with the examples that are files."""
    folder = tmp_path_factory.mktemp("examples")
    for page in PAGES:
        if blocks := re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            (folder / f"{page.stem.lower().replace('-', '_')}.py").write_text("\n".join(blocks))
        for name, block in re.findall(r"```python file=((?!test_)\S+)\n(.*?)```", page.read_text(), re.DOTALL):
            (folder / name).write_text(block)
    for file in (ROOT / "docs" / "examples").glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    assert {"readme.py", "keeper.py", "word_counter.py"} <= {file.name for file in folder.iterdir()}
    return folder


WRONG = """
from dataclasses import dataclass
from safekeeper import CheckpointId, SafeKeeper

@dataclass
class Session:
    user: str

with SafeKeeper("memory:", state=Session) as keeper:
    keeper.save(CheckpointId("Session", "ada"), {"user": "ada"})
    keeper.fetch(CheckpointId("Session", "ada")).user
"""
ERRORS = ["wrong.py:10", "wrong.py:11"]
"""What is saved is no Session; what is fetched may be None."""


def errors_of(*command, folder):
    """The places of the errors, and all that was said."""
    (folder / "wrong.py").write_text(WRONG)
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=280)
    places = re.findall(r"(\w+\.py:\d+)(?=:.* error)", done.stdout)
    return places, done.stdout + done.stderr


def test_mypy_accepts_the_examples_and_knows_the_type_of_a_state(examples):
    (examples / "mypy.ini").write_text(
        f"[mypy]\nstrict = True\nfollow_imports = silent\n{PATH}"
        "[mypy-fsspec.*]\nignore_missing_imports = True\n"  # it ships no types
    )
    errors, said = errors_of("mypy", "--config-file", "mypy.ini", ".", folder=examples)
    assert errors == ERRORS, said


def test_pyright_accepts_the_examples_and_knows_the_type_of_a_state(examples):
    settings = {"include": ["*.py"], "extraPaths": [str(SOURCES)], "typeCheckingMode": "standard"}
    (examples / "pyrightconfig.json").write_text(json.dumps(settings))
    errors, said = errors_of("pyright", "--pythonpath", sys.executable, folder=examples)
    assert errors == ERRORS, said
