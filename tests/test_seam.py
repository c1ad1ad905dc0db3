"""The wall between what keeps checkpoints and what stores them: nobody imports across it."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ABOVE, BELOW, ROOMS, SHARED, BENCHMARK, STUDIES = CONTRACTS
BESIDE = {"safekeeper.backends", "safekeeper.bench", "safekeeper.dev"}


def lint_imports(folder):
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture
def copy(tmp_path):
    """The sources as they are, to be changed."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("safekeeper", "backends", "bench"):
        ignored = shutil.ignore_patterns("*.jar", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    return tmp_path


def test_nobody_imports_across_the_seam(copy):
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("safekeeper/agent/server.py", "import safekeeper.backends.log", ABOVE),
        ("safekeeper/cli.py", "from safekeeper.backends.memory import MemoryBackend", ABOVE),
        ("safekeeper/spark/prune.py", "def f():\n    from safekeeper.backends import file", ABOVE),
        ("backends/memory.py", "import safekeeper.keeper.keeper", BELOW),
        ("backends/file.py", "from safekeeper.agent import protocol", BELOW),
        ("backends/lmdb/layout.py", "from safekeeper.backends.log import location", ROOMS),
        ("backends/shared/checksums.py", "import safekeeper.backends.redis.layout", SHARED),
        ("bench/ycsb/stores.py", "from safekeeper.backends.memory import MemoryBackend", BENCHMARK),
        ("bench/harness/machine.py", "import safekeeper.backends.shared.checksums", BENCHMARK),
        ("bench/cli.py", "def f():\n    from safekeeper.backends import log", BENCHMARK),
        ("bench/ycsb/compare.py", "import safekeeper.bench.studies.thesis", STUDIES),
        ("bench/harness/run_all.py", "from safekeeper.bench.lab import shaped_network", STUDIES),
    ],
    ids=[
        *("agent", "cli", "spark, late", "keeper", "agent from below", "another backend", "from shared"),
        *("ycsb", "harness", "bench, late", "a study", "the laboratory"),
    ],
)
def test_an_import_across_the_seam_fails_the_lint(copy, module, line, broken):
    with (copy / module).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint_imports(copy)
    assert done.returncode != 0
    assert f"{broken['name']} BROKEN" in done.stdout


def test_every_module_is_above_below_or_beside():
    modules = {
        f"safekeeper.{path.stem}"
        for path in (ROOT / "safekeeper").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.stem != "__init__"
    }
    assert set(ABOVE["source_modules"]) == modules - BESIDE


def test_every_backend_is_a_room_of_its_own():
    folders = {path.stem for path in (ROOT / "backends").iterdir() if not path.stem.startswith("__")}
    assert {name.rpartition(".")[2] for name in ROOMS["modules"]} == folders - {"shared"}
    assert SHARED["forbidden_modules"] == ROOMS["modules"]
