"""`safekeeper bench all`: run every study, and keep what each one says.

A study is a module in `studies`, or a package there with a `__main__`. It can be run with `python -m` and takes
`--quick`. Of what it prints, the lines that `goals.py` makes go onto the page of `page.py`.

A study has a session and a folder for temporary files of its own, and we are the parent of what it leaves behind, so
nothing that it starts or writes outlives it: not when it ends, nor when we are told to end.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from safekeeper.bench.harness.goals import Goal, goals_in, verdicts_in
from safekeeper.bench.harness.machine import Machine
from safekeeper.errors import SafekeeperError

_MOST_FOR_OTHERS = 0.25
"""What others may use of the machine while a study runs."""
_PR_SET_CHILD_SUBREAPER = 36
_TO_END = 10.0
"""Seconds that a study has to end in order when it is interrupted."""


@dataclass(frozen=True, slots=True)
class Study:
    """A benchmark that can be run by itself."""

    name: str
    title: str
    """The first line of its docstring."""


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """What a study printed, or why it did not run."""

    study: Study
    quick: bool
    machine: Machine
    """As it was when the study had ended."""
    output: str
    failure: str = ""
    seconds: float = 0.0
    """How long it ran."""
    others: float = 0.0
    """How many processors everything else used meanwhile, on average."""
    conditions: str = ""
    """What else is to be known of the run."""

    @property
    def goals(self) -> list[Goal]:
        """The goals that it speaks of."""
        return list(goals_in(self.output))

    def for_page(self) -> StudyOutcome:
        """Without what it printed besides the lines for the page: that stays out of the repository."""
        lines = [line for line in self.output.splitlines() if any(verdicts_in(line))]
        return replace(self, output="\n".join(lines))

    def warning(self) -> str:
        """What is to be said before numbers that were measured while others used the machine, else nothing."""
        if self.others <= _MOST_FOR_OTHERS * self.machine.cores:
            return ""
        return (
            f"The machine was busy with other work: it took {self.others:.1f} of {self.machine.cores} processors."
            " Measure again on an idle one before relying on any of this."
        )

    def to_json(self) -> str:
        """All of it."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def of_json(cls, text: str) -> StudyOutcome:
        """What `to_json` was made from."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, kept: dict[str, Any]) -> StudyOutcome:
        """What `asdict` has made of it."""
        return cls(**kept | {"study": Study(**kept["study"]), "machine": Machine(**kept["machine"])})


def studies() -> Iterator[Study]:
    """Every study, by name. None is imported: what it needs may not be installed."""
    for file in sorted(resources.files("safekeeper.bench.studies").iterdir(), key=lambda file: file.name):
        source = file / "__main__.py" if file.is_dir() else file
        if file.name.startswith("__") or not source.name.endswith(".py") or not source.is_file():
            continue
        docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
        yield Study(file.name.removesuffix(".py"), docstring.partition("\n")[0])


def run_all(
    *, quick: bool, only: Collection[str] = (), results: Path | None = None, said: Callable[[str], object]
) -> list[StudyOutcome]:
    """Run the studies, or those named in *only*, one after the other: two at once would measure each other.

    The folder *results* keeps each outcome; what earlier runs have kept there of other studies is returned too. When
    this is interrupted, the study that runs is ended and counts as failed, and those that would follow are left out.
    """
    known = list(studies())
    if unknown := set(only) - {study.name for study in known}:
        raise SafekeeperError(
            f"no benchmark is called {min(unknown)}: there are {', '.join(study.name for study in known)}"
        )
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, StudyOutcome] = {}
    for study in known:
        if only and study.name not in only:
            continue
        said(f"running {study.name}")
        outcomes[study.name] = outcome = run(study, quick=quick)
        said(f"{study.name} {'failed' if outcome.failure else 'ended'} after {outcome.seconds:.0f} s")
        if results is not None:
            (results / f"{study.name}.json").write_text(outcome.to_json())
        if outcome.failure == INTERRUPTED:
            break
    if results is not None:
        kept = (StudyOutcome.of_json(file.read_text()) for file in results.glob("*.json"))
        outcomes = {outcome.study.name: outcome for outcome in kept}
    return [outcomes[study.name] for study in known if study.name in outcomes]


def joined(kept: Sequence[StudyOutcome], new: Sequence[StudyOutcome]) -> list[StudyOutcome]:
    """What the page is made from: a study that ran replaces what was kept of it, unless it failed, or was quick and the
    one before was not."""
    outcomes = {outcome.study.name: outcome for outcome in kept}
    for outcome in new:
        before = outcomes.get(outcome.study.name)
        if before is None or not (outcome.failure or (outcome.quick and not before.quick)):
            outcomes[outcome.study.name] = outcome.for_page()
    return [outcomes[name] for name in sorted(outcomes)]


def load_kept(file: Path) -> list[StudyOutcome]:
    """What `dump_kept` has written, nothing if there is no file."""
    return [StudyOutcome.of(kept) for kept in json.loads(file.read_text())] if file.exists() else []


def dump_kept(outcomes: Sequence[StudyOutcome]) -> str:
    """*outcomes* as the file from which the page is made."""
    return json.dumps([asdict(outcome) for outcome in outcomes], indent=1, ensure_ascii=False) + "\n"


def run(study: Study, *, quick: bool) -> StudyOutcome:
    """Run one study. That it fails is an outcome, not an error."""
    arguments = ["--quick"] if quick else []
    before, started = _used_by_others(), time.monotonic()
    output, failure = run_apart([sys.executable, "-m", f"safekeeper.bench.studies.{study.name}", *arguments])
    seconds = time.monotonic() - started
    others = max(_used_by_others() - before, 0.0) / seconds
    machine = Machine.here(Path(tempfile.gettempdir()))  # studies write there
    return StudyOutcome(study, quick, machine, output, failure, seconds, others)


def _used_by_others() -> float:
    """Seconds of processor time that everything but our children has used so far, what a hypervisor took included."""
    user, nice, system, _, _, *interrupts_and_stolen = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = sum(map(int, (user, nice, system, *interrupts_and_stolen)))
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / os.sysconf("SC_CLK_TCK") - ours.ru_utime - ours.ru_stime


INTERRUPTED = "interrupted"


def run_apart(command: Sequence[str]) -> tuple[str, str]:
    """What *command* printed and why it failed, if it did. Whatever it has started is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="safekeeper-bench-") as folder:
        settings = {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "110", "TMPDIR": folder}
        # Files, not pipes: a pipe ends only when the last one that has inherited it does.
        with _ending_orphans(), open(f"{folder}/output", "w+") as output, open(f"{folder}/errors", "w+") as errors:
            process = subprocess.Popen(
                command,
                env=os.environ | settings,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            failure = _wait(process)
            output.seek(0)
            errors.seek(0)
            if process.returncode and not failure:
                failure = errors.read().strip().rpartition("\n")[2] or f"exit code {process.returncode}"
            return output.read().rstrip(), failure


@contextmanager
def _ending_orphans() -> Iterator[None]:
    """Become the parent of whoever loses its own meanwhile, and end it: what it used then counts as our children's."""
    before = _children()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        while orphans := _children() - before:  # the children of those that are ended come next
            for orphan in orphans:
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(orphan, 0)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children() -> set[int]:
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def _wait(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end of *process*, see to that of all its children, and say whether we were interrupted."""
    try:
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TO_END)
        return INTERRUPTED
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ""
