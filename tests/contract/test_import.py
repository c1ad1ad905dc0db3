"""`import safekeeper` is quick: what only some need is imported by those."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import safekeeper

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
HEAVY = {"numpy", "rich", "typer", "click", "importlib.metadata", "asyncio"}
DRIVERS = {
    "diskcache",
    "fsspec",
    "happybase",
    "hdrh",
    "jpype",
    "langchain_core",
    "langgraph",
    "lmdb",
    "pandas",
    "plyvel",
    "psycopg",
    "pyarrow",
    "pyspark",
    "redis",
    "rocksdict",
    "slatedb",
}
DRIVERS |= {"hypothesis", "pytest", "zstandard"}


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_safekeeper_imports_no_driver_and_nothing_heavy():
    # What Python's own start-up imports does not count: an editable install brings some of these.
    loaded = loaded_by("import safekeeper") - loaded_by("pass")
    assert "safekeeper.keeper.keeper" in loaded
    assert not loaded & (HEAVY | DRIVERS)
    assert not {name for name in loaded if name.startswith(("safekeeper.backends", "safekeeper.bench"))}


def test_every_extra_has_its_module_in_the_list():
    """A driver that is added is looked for as well."""
    modules = {"jpype1": "jpype", "hdrhistogram": "hdrh", "psycopg-binary": "psycopg"}
    modules |= {f"langgraph-checkpoint{of}": "langgraph" for of in ("", "-postgres", "-sqlite")}
    extras = PROJECT["optional-dependencies"]
    names = {re.match(r"[\w.-]+", name)[0] for key in extras if key != "all" for name in extras[key]}
    assert {modules.get(name, name) for name in names} <= DRIVERS


def test_what_is_imported_late_is_there():
    assert all(hasattr(safekeeper, name) for name in safekeeper.__all__)
    assert "numpy" in loaded_by("from safekeeper import Columns")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = safekeeper.nothing


def test_a_star_import_leaves_the_builtin_open_alone():
    code = "from safekeeper import *; import builtins as b, safekeeper as s; print(open is b.open, s.open is not open)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
