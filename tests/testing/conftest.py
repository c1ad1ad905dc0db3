"""Runs a kit on classes that are broken on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def run_kit() -> Callable[[Path, str, Iterable[tuple[str, str]]], dict[tuple[str, str], str]]:
    """run_kit(folder, file, wanted): what the kit said of *wanted*, names of classes in *file* with a test each, or ""
    for all of them: class and test to "passed", "skipped" or the message. One process runs it all; it finds what is in
    *folder*, too."""

    def run(folder: Path, file: str, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
        tests = [f"{HERE}/{file}::Test{name}{test and '::'}{test}" for name, test in wanted]
        path = os.pathsep.join([str(folder), str(HERE), *filter(None, sys.path)])
        # Without CI: else pytest makes a full diff of whatever is wrong, which may take minutes, and nobody reads it.
        quiet = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={folder}/report.xml", *tests],
            env={**quiet, "PYTHONPATH": path, "SAFEKEEPER_TEST_LEVEL": ""},
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
        cases = ElementTree.parse(folder / "report.xml").iter("testcase")
        return {
            (case.attrib["classname"].rpartition(".Test")[2], case.attrib["name"]): _outcome(case) for case in cases
        }

    return run


def _outcome(case: ElementTree.Element) -> str:
    if not len(case):
        return "passed"
    child = case[0]
    return child.tag if child.tag != "failure" else child.attrib["message"]
