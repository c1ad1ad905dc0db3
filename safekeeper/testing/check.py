"""`safekeeper check`: the kit on any store, what it declares beside what was shown, and how fast it is beside `log:`.

    checked = check("redis://127.0.0.1/0?prefix=try")
    checked.kept

Nothing that is in a store is touched. A store in local files is checked in a new folder beside it, which goes in the
end. One on a network has to be empty; what the kit has written there is removed by the names that the kit gives.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch
from urllib.parse import quote

import safekeeper
from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    Scope,
    SupportsAtomicBatch,
    SupportsCreate,
    SupportsScan,
    SupportsSomeAtomicBatches,
    Survives,
)
from safekeeper.errors import BadUrl, SafekeeperError, one_line
from safekeeper.testing.ids import AWKWARD_GROUPS
from safekeeper.url import Url, mask_logins, show_url

Outcome = Literal["passed", "failed", "skipped"]

_KIT_GROUP = re.compile(r"(group|model)-[0-9a-f]{11}")  # one test cuts the last character of its group
_FIXED_GROUPS = {"group", "fork", *AWKWARD_GROUPS.values()}
_ROUNDS, _SECONDS = 5, 0.3
_SPEED_GROUP = "group-5afe5afe5afe"  # as the kit's own, so that it is removed with them


@dataclass(frozen=True, slots=True)
class KitTest:
    """What one test of the kit showed."""

    subject: str
    """The part of the kit: `Values`, `Crash`."""
    name: str
    outcome: Outcome
    reason: str = ""
    """Why it failed or does not apply, in one line."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One row of the table."""

    name: str
    declared: str
    shown: str
    broken: bool = False


@dataclass(frozen=True, slots=True)
class StoreSpeed:
    """Rates of single durable operations in one thread, 1 KB each, with the ratio to `log:` in the same rounds."""

    operation: str
    rate: float
    """Operations a second, the median of the rounds."""
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CheckedStore:
    """What `check` found."""

    backend: str
    promises: Sequence[Promise]
    tests: Sequence[KitTest] = field(repr=False)
    speeds: Sequence[StoreSpeed]
    left: int
    """How many groups of others are in a store that was empty at the beginning: they were left alone."""

    @property
    def kept(self) -> bool:
        """Whether nothing that was tried failed."""
        return not self.failures

    @property
    def failures(self) -> list[KitTest]:
        """The tests that failed."""
        return [test for test in self.tests if test.outcome == "failed"]


def check(
    url: str, *, unreachable: str | None = None, done: Callable[[str], object] = lambda text: None
) -> CheckedStore:
    """Run the kit on *url* and measure it. *done* is told what was done, for a progress line.

    *unreachable* is the URL of a store of this kind that cannot be reached; for a path one is found. Raise `BadUrl` if
    the store is on a network and not empty, or if the kit's modules are not installed.
    """
    _require_kit()
    with safekeeper.open(url) as store:
        on_network = store.scope == Scope.NETWORK
        if on_network and next(iter(store.groups()), None) is not None:
            other = "another database, table, folder or prefix"
            raise BadUrl(f"{show_url(url)} is not empty: the check writes there, so give an empty place: {other}")
    with _place_on_network(url) if on_network else _place_beside(url) as place:
        speeds = _speeds(place.url, place.log_folder, done)  # first: what the kit leaves behind would count
        tests = _run_kit(place.url, unreachable, done)
        with safekeeper.open(place.url) as store:
            promises = list(_promises(store, tests))
            backend = type(store).__name__
    return CheckedStore(backend, promises, tests, speeds, place.left)


def _require_kit() -> None:
    for module in ("pytest", "hypothesis"):
        try:
            __import__(module)
        except ModuleNotFoundError as error:
            raise BadUrl(f"the check needs the module {module}: pip install 'safekeeper[testing]'") from error


@dataclass(slots=True)
class _CheckedPlace:
    url: str
    log_folder: Path
    """Where the log is that the store is measured beside: on the same disk, if the store has one."""
    left: int = 0


@contextmanager
def _place_beside(url: str) -> Iterator[_CheckedPlace]:
    """A new store of the kind of *url*, in a folder beside it, which is removed in the end."""
    parsed = Url.parse(url)
    name = f"check-{secrets.token_hex(4)}"
    if not parsed.path:  # a store without files
        with tempfile.TemporaryDirectory(prefix="safekeeper-") as scratch:
            yield _CheckedPlace(url.replace(f"{parsed.scheme}:", f"{parsed.scheme}:{name}", 1), Path(scratch))
        return
    path = Path(os.path.abspath(parsed.path))
    folder = path.with_name(f"{path.name}-{name}")
    try:
        folder.mkdir()
    except OSError as error:
        reason = error.strerror
        raise BadUrl(f"{show_url(url)}: the check makes a folder beside it, {folder}: {reason}") from error
    query = url.partition("?")[2]
    try:
        yield _CheckedPlace(f"{parsed.scheme}://{quote(str(folder / 'store'))}{'?' if query else ''}{query}", folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _place_on_network(url: str) -> Iterator[_CheckedPlace]:
    """The empty place *url*; in the end, what the kit has written there is removed."""
    with tempfile.TemporaryDirectory(prefix="safekeeper-") as folder:
        place = _CheckedPlace(url, Path(folder))
        try:
            yield place
        finally:
            place.left = _remove_groups(url)


def _remove_groups(url: str) -> int:
    """Remove what the kit has written to *url*. Return how many groups of others there are."""
    others = 0
    with safekeeper.open(url) as store:
        for group in set(store.groups()):
            if group not in _FIXED_GROUPS and not _KIT_GROUP.search(group):
                others += 1
                continue
            batch = Batch()
            for key in store.keys(group):
                batch.delete(CheckpointId(group, key))
                if len(batch) == 1000:
                    store.write(batch)
                    batch = Batch()
            store.write(batch)
    return others


class _Collector:
    """A plugin of pytest that keeps what each test came to."""

    def __init__(self, done: Callable[[str], object]) -> None:
        self.tests: list[KitTest] = []
        self._done = done
        self._subjects: dict[str, str] = {}

    def pytest_itemcollected(self, item: Any) -> None:
        """Remember which part of the kit a test is of."""
        self._subjects[item.nodeid] = item.function.__qualname__.partition("Contract.")[0]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test failed, was skipped, or has passed when its call did."""
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.rpartition("::")[2]
        if self.tests and self.tests[-1].name == name:  # it failed again while it was torn down
            self.tests.pop()
        self.tests.append(KitTest(self._subjects[report.nodeid], name, report.outcome, _reason(report)))
        self._done(f"{len(self.tests)} of {len(self._subjects)} tests")


def _reason(report: Any) -> str:
    if report.passed:
        return ""
    if report.skipped:
        return one_line(report.longrepr[2].removeprefix("Skipped: "))
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return one_line(mask_logins(text.strip().partition("\n")[0]))[:300]


def _run_kit(url: str, unreachable: str | None, done: Callable[[str], object]) -> list[KitTest]:
    """Let pytest run the kit on *url* in this process, without anything of the user's own settings of pytest."""
    import pytest

    from safekeeper.testing import checked_store

    given = {checked_store.URL_VARIABLE: url, checked_store.UNREACHABLE_VARIABLE: unreachable or ""}
    plain = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    collector = _Collector(done)
    with tempfile.TemporaryDirectory(prefix="safekeeper-") as folder, patch.dict(os.environ, given | plain):
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        options = ["-c", f"{folder}/pytest.ini", "--rootdir", folder, "--basetemp", f"{folder}/tmp", "--noconftest"]
        options += ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:warnings", "--import-mode=importlib"]
        ended = pytest.main([*options, checked_store.__file__], plugins=[collector])
    if ended == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not collector.tests:
        raise SafekeeperError(f"the kit did not run: pytest ended with {ended!r}")
    return collector.tests


_SUBJECTS = {
    "Values": "values come back as they were written",
    "Listing": "keys and groups are listed",
    "Lifecycle": "it opens, closes, forks and fails as it should",
    "Concurrency": "threads and handles do not disturb each other",
    "Model": "any history gives what a dict gives",
    "Crash": "what is acknowledged survives kill -9",
    "Scan": "a group is read in one pass (scan)",
    "Create": "a value is stored only if absent (create)",
    "Claims": "of several claims one holds",
    "Large": "values of any size, in parts",
}
_WHOLE = "test_a_batch_is_seen_whole"


def _promises(store: Backend, tests: Sequence[KitTest]) -> Iterator[Promise]:
    """The rows of the table: what *store* declares, and what *tests* showed of it."""
    scope = store.scope.name.lower()
    others = [test for test in tests if "another process]" in test.name or "another handle]" in test.name]
    yield _promise("who sees a write", scope, others)
    for flag in Survives:
        name = (flag.name or "").lower()
        declared = "no" if flag not in store.survives else "yes, by ?assert=" if flag in store.asserted else "yes"
        if flag is Survives.PROCESS:
            yield _promise("a write survives: process", declared, [test for test in tests if test.subject == "Crash"])
        else:
            yield Promise(f"a write survives: {name}", declared, "cannot be tried here" if declared != "no" else "-")
    some = "some" if isinstance(store, SupportsSomeAtomicBatches) else "no"
    batches = "yes" if isinstance(store, SupportsAtomicBatch) else some
    yield _promise("batches are whole", batches, [test for test in tests if test.name.startswith(_WHOLE)])
    optional = {"Scan": isinstance(store, SupportsScan), "Create": isinstance(store, SupportsCreate)}
    for subject, name in _SUBJECTS.items():
        if subject != "Crash":
            declared = "by the contract" if subject not in optional else "yes" if optional[subject] else "no"
            yield _promise(name, declared, [test for test in tests if test.subject == subject])


def _promise(name: str, declared: str, tests: Sequence[KitTest]) -> Promise:
    counts = Counter(test.outcome for test in tests)
    words = [f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed") if counts[outcome]]
    if counts["skipped"]:
        words.append(f"{counts['skipped']} not applicable" if words else "not applicable")
    return Promise(name, declared, ", ".join(words) or "-", bool(counts["failed"]))


def _speeds(url: str, folder: Path, done: Callable[[str], object]) -> list[StoreSpeed]:
    """How fast single durable saves and reads are, turn by turn with a log in *folder*. None if the store fails."""
    from safekeeper.bench.harness.interleave import interleave

    done("measuring its speed beside log:")
    try:
        with safekeeper.open(url) as store, safekeeper.open(f"log://{quote(str(folder / 'log'))}") as log:
            found = []
            for operation, measure in (("save", _saves), ("read", _reads)):
                arms = {"store": lambda m=measure: m(store), "log": lambda m=measure: m(log)}
                result = interleave(arms, _ROUNDS, operation)
                ratio = result.ratio("store", "log")
                found.append(StoreSpeed(operation, result.rate("store").median, ratio.median, ratio.low, ratio.high))
            return found
    except Exception:  # whatever a backend raises that is not sound: the kit will say what is wrong with it
        return []


def _saves(store: Backend) -> float:
    value = secrets.token_bytes(1024)
    return _rate(lambda n: store.write(Batch({CheckpointId(_SPEED_GROUP, b"%d" % (n % 100)): value})))


def _reads(store: Backend) -> float:
    return _rate(lambda n: store.read([CheckpointId(_SPEED_GROUP, b"%d" % (n % 100))]))


def _rate(operation: Callable[[int], object]) -> float:
    began, number = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < _SECONDS:
        operation(number)
        number += 1
    return number / took
