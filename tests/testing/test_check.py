"""`safekeeper check`: the kit on a URL, one table, and nobody's data touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.dev.redis import RedisServer
from safekeeper.testing.check import _remove_groups
from safekeeper.testing.entry_point import write_entry_points
from safekeeper.testing.ids import AWKWARD_IDS

HERE = Path(__file__).parent
ID = CheckpointId("WordCounter", b"foo")

long_form = pytest.mark.skipif(
    os.environ.get("SAFEKEEPER_TEST_LEVEL") != "long",
    reason="the contract tests of this backend run the same kit every day",
)


def check(url, *options, path=(), program=("-m", "safekeeper.cli", "check")):
    return subprocess.run(
        [sys.executable, *program, url, *options],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "SAFEKEEPER_TEST_LEVEL": "",
            "PYTHONPATH": os.pathsep.join([*map(str, path), *filter(None, sys.path)]),
        },
    )


def row(table, name):
    (line,) = (line for line in table.splitlines() if line.strip().startswith(name))
    return line.strip().removeprefix(name).split(maxsplit=1)


def test_a_store_in_memory_keeps_what_little_it_promises():
    done = check("memory:")
    assert done.returncode == 0, done.stdout + done.stderr
    assert row(done.stdout, "who sees a write")[0] == "process"
    assert row(done.stdout, "a write survives: process") == ["no", "not applicable"]
    assert "82 passed" in done.stdout
    assert "of log (" in row(done.stdout, "speed: one save of 1 KB (operations/s)")[1]
    assert "MemoryBackend keeps its promises as far as they were tried" in done.stderr


def test_a_broken_promise_is_named_and_the_exit_code_is_1(tmp_path):
    write_entry_points(tmp_path / "site", {"broken": "broken_backends:TakesEmptyForAbsent"})
    done = check(f"broken://{tmp_path}/store", "--json", path=(tmp_path / "site", HERE))
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    broken = {promise["name"] for promise in found["promises"] if promise["broken"]}
    assert "values come back as they were written" in broken
    assert "it opens, closes, forks and fails as it should" not in broken
    failed = {test["name"] for test in found["tests"] if test["outcome"] == "failed"}
    assert "test_a_value_of_no_bytes_is_not_absent" in failed
    assert found["kept"] is False
    assert os.listdir(tmp_path) == ["site"]


@long_form
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_store_that_is_there_already_is_not_touched(tmp_path):
    url = f"log://{tmp_path}/store"
    with safekeeper.open(url) as store:
        store.write(Batch({ID: b"41"}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = check(url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert row(done.stdout, "a write survives: process") == ["yes", "1 passed"]
    assert row(done.stdout, "a write survives: power")[1] in ("cannot be tried here", "-")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@long_form
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_store_on_a_server_is_checked_and_left_empty(tmp_path):
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        done = check(server.url, "--unreachable", "redis://127.0.0.1:1/0?timeout=2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "not the check's" not in done.stderr
        with safekeeper.open(server.url) as store:
            assert list(store.groups()) == []


def test_a_store_on_a_server_that_is_not_empty_is_refused(tmp_path):
    with RedisServer(tmp_path) as server, safekeeper.open(server.url) as store:
        store.write(Batch({ID: b"41"}))
        done = check(server.url)
        assert done.returncode == 2
        assert "is not empty: the check writes there, so give an empty place" in done.stderr
        assert done.stderr.count("\n") == 1
        assert store.read([ID]) == [b"41"]


def test_only_what_the_kit_has_written_is_removed():
    url = "memory:removing"
    with safekeeper.open(url) as store:
        store.write(Batch(dict.fromkeys([*AWKWARD_IDS.values(), CheckpointId("group-0123456789ab", b"")], b"")))
        store.write(Batch({ID: b"41", CheckpointId("my-group", b""): b""}))
        assert _remove_groups(url) == 2
        assert set(store.groups()) == {ID.group, "my-group"}


@pytest.mark.parametrize(
    ("url", "says"),
    (
        ("nosuch:x", "no backend for nosuch:"),
        ("log:///no/such/folder/store", "the check makes a folder beside it, /no/such/folder/store-check-"),
    ),
)
def test_what_cannot_be_checked_is_one_line_and_exit_code_2(url, says):
    done = check(url)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ("pytest", "hypothesis"))
def test_without_what_it_needs_it_says_what_to_install(module):
    program = f"import sys; sys.modules[{module!r}] = None; from safekeeper.cli import main; main()"
    done = check("memory:", program=("-c", program, "check"))
    assert done.returncode == 2
    assert done.stderr == f"safekeeper: the check needs the module {module}: pip install 'safekeeper[testing]'\n"


def test_settings_of_pytest_around_it_do_not_matter(tmp_path):
    (tmp_path / "conftest.py").write_text("raise SystemExit('somebody else’s')")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    program = "import os; os.chdir({!r}); from safekeeper.testing.check import check; print(check('memory:').kept)"
    environment = {
        **os.environ,
        "PYTEST_ADDOPTS": "--no-such-option",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", program.format(str(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "True\n", done.stderr
