"""What an experiment of the thesis is given, and what it found: each number beside the thesis', with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from safekeeper.bench.harness.goals import Goal, beside
from safekeeper.bench.harness.interleave import Spread

_ALIKE = 1.25
"""Up to this factor two numbers count as the same: they come from other machines, fifteen years apart."""


@dataclass(frozen=True, slots=True)
class ThesisScale:
    """How much to measure."""

    rounds: int
    threads: tuple[int, ...]
    operations: int
    events: int
    rebuilt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    seconds: float
    """Of each rate in 4.7."""
    small_writes: int
    """In table 5.1 without a sync each; with one it is a hundredth."""
    small_file: int = 1 << 20
    """The bytes of the file of table 5.1."""


FULL = ThesisScale(
    rounds=10,
    threads=(1, 2, 4, 8, 16, 32, 64),
    operations=10_000,
    events=10_000,
    rebuilt_ids=(1000, 10_000, 100_000, 1_000_000),
    ids=(1000, 10_000, 100_000, 1_000_000),
    seconds=30,
    small_writes=10**6,
    small_file=1 << 30,
)
QUICK = ThesisScale(3, (1, 4, 16), 500, 1_000, (1000, 1_000_000), (1000, 3000), 3, 10**5, 64 << 20)


@dataclass(frozen=True, slots=True)
class ThesisSite:
    """Where to measure."""

    folder: Path
    servers: Sequence[str] = ()
    """The URLs of empty stores in servers."""
    missing: Sequence[str] = ()
    """Which servers could not be had, and why."""

    def urls(self, experiment: str) -> list[str]:
        """The stores of one experiment, empty: file first."""
        return [f"{scheme}://{self.folder}/{experiment}-{scheme}" for scheme in ("file", "log")]


@dataclass(slots=True)
class Finding:
    """What an experiment found."""

    title: str
    thesis: str
    """What the thesis found."""
    table: Table = field(init=False)
    goals: list[Goal] = field(default_factory=list)
    header: InitVar[Sequence[str]] = ()
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self, header: Sequence[str]) -> None:
        self.table = Table(box=None, header_style="bold")
        for name in header:
            self.table.add_column(name, justify="right")

    def expect(self, text: str, found: Spread, wanted: float, *, more: str = "", less: str = "") -> None:
        """Say whether it is as high as the thesis' *wanted*, or that the rounds do not agree on that.

        *more* and *less* are the reasons, if it is clearly more or clearly less than in the thesis.
        """
        said = f"{text}: {found} x, thesis {wanted:g} x{_reason(found.median / wanted, more, less)}"
        if found.low < wanted <= found.high:
            self.remarks.append(f"no verdict, the rounds disagree: {said}")
        else:
            self.goals.append(Goal(said, found.median >= wanted))

    def beside(self, text: str, found: Spread, thesis: float, unit: str, *, more: str = "", less: str = "") -> None:
        """Put a number beside the thesis', which is of another machine: a comparison, not a goal."""
        times = found.median / thesis
        word = "as in the thesis" if 1 / _ALIKE <= times <= _ALIKE else "more" if times > 1 else "less"
        why = _reason(times, more, less)
        numbers = f"{found} {unit}, thesis {thesis:g}"
        self.remarks.append(beside(text, numbers, word, f", {times:.2g} x{why}"))

    def print(self) -> None:
        """Print everything."""
        console = Console(highlight=False, width=110)
        console.print(self.title, style="bold", soft_wrap=True)
        console.print(self.table)
        print(f"thesis: {self.thesis}")
        for remark in self.remarks:
            print(remark)
        for goal in self.goals:
            print(goal)
        print()


def _reason(times: float, more: str, less: str) -> str:
    why = more if times > _ALIKE else less if times < 1 / _ALIKE else ""
    return f"; {why}" if why else ""


def alone(value: float) -> Spread:
    """A number that was measured once."""
    return Spread(value, value, value)
