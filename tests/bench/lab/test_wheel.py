"""The laboratory is in a clone only: the wheel has the rest of `bench`, and its studies say what they miss."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from safekeeper.bench.harness.run_all import Study, run

ROOT = Path(__file__).parents[3]
BUILT = """
from setuptools.dist import Distribution
distribution = Distribution({"script_name": "setup.py"})
distribution.parse_config_files()
command = distribution.get_command_obj("build_py")
command.ensure_finalized()
for file in command.get_outputs(include_bytecode=False):
    print(file.partition(command.build_lib + "/")[2])
"""


@pytest.fixture(scope="module")
def files():
    """What a wheel that is built from this clone has."""
    done = subprocess.run([sys.executable, "-c", BUILT], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_wheel_has_all_of_bench_but_the_laboratory(files):
    bench = {str(Path("safekeeper", path.relative_to(ROOT))) for path in (ROOT / "bench").rglob("*") if path.is_file()}
    bench = {path for path in bench if "__pycache__" not in path}
    lab = {path for path in bench if path.startswith("safekeeper/bench/lab/")}
    assert "safekeeper/bench/lab/HdfsRaw.java" in lab
    assert {path for path in files if path.startswith("safekeeper/bench/")} == bench - lab
    assert {Path(path).suffix for path in bench - lab} == {".py", ".css", ".java", ".properties"}


@pytest.mark.parametrize("name", ["peace", "hdfs_overhead"])
def test_a_study_that_needs_the_laboratory_says_so_and_does_not_run(name, files, tmp_path, monkeypatch):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    monkeypatch.chdir(tmp_path)  # a child looks there first
    monkeypatch.syspath_prepend(tmp_path)
    outcome = run(Study(name, ""), quick=True)
    assert outcome.output == ""
    assert outcome.failure.startswith("this study needs the laboratory, which is in a clone of the repository")
