"""How long a process stands still while its large states are saved: `python -m safekeeper.bench.studies.no_pause`.

128 MB of state in 1, 4 and 64 parts, each saved by itself (`keeper.save(id, part, frozen=True)`) in a durable `log:`,
while another thread wants to run every millisecond. It notes by how much it comes too late. This is what Figure 7 and
Table 7 of SGuard measure with tuples; that of one part is the hard case there as well.

    none      nothing is saved
    whole     one call of msgpack a part, as it was before there were slices
    slices    what the keeper does
    fork      a forked child has a snapshot of everything, serializes it and sends the bytes through a pipe

With `--busy` a third thread computes all the time: then it shows what share of the interpreter a save gets.

All arms run in one process, turn by turn. What is none's is taken off the others', round by round.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import struct
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from safekeeper import CheckpointId, SafeKeeper
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import rotated
from safekeeper.keeper.serializers import Codec, Serializer, serializer_named

NONE, SLICES = "none", "slices"
TICK = 0.001
PARTS = (1, 4, 64)
P999_ABOVE, LONGEST_ABOVE = 5.0, 30.0  # milliseconds over none's
_ENTRY_BYTES = 160
_LENGTH = struct.Struct("<Q")

State = dict[str, dict[str, Any]]


class Whole:
    """The keeper's msgpack, in one call."""

    name = "msgpack"

    def __init__(self) -> None:
        self._msgpack = serializer_named("msgpack")

    def dumps(self, state: Any) -> bytes:
        """At once."""
        return self._msgpack.dumps(state)

    def loads(self, data: bytes) -> Any:
        """The state."""
        return self._msgpack.loads(data)


class Ticker(threading.Thread):
    """Wants to run every millisecond, and notes how many milliseconds it comes too late."""

    def __init__(self) -> None:
        super().__init__(name="ticker", daemon=True)
        self.late: list[float] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            began = time.perf_counter()
            time.sleep(TICK)
            self.late.append(1e3 * (time.perf_counter() - began - TICK))

    def stop(self) -> list[float]:
        """All that was noted, the longest last."""
        self._over.set()
        self.join()
        return sorted(self.late)


@dataclass
class Pauses:
    """What an arm did to the ticker, round by round, in milliseconds."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    p999: list[float] = field(default_factory=list)
    longest: list[list[float]] = field(default_factory=list)
    """The five longest of each round."""
    seconds: list[float] = field(default_factory=list)
    """How long the checkpoint took."""
    nbytes: int = 0

    def note(self, late: list[float], seconds: float, nbytes: int) -> None:
        """One round more."""
        for share, values in ((0.5, self.p50), (0.99, self.p99), (0.999, self.p999)):
            values.append(late[int(share * (len(late) - 1))])
        self.longest.append(late[-5:])
        self.seconds.append(seconds)
        self.nbytes = nbytes


def states(megabytes: int, parts: int) -> list[State]:
    """So much state, as bytes of msgpack, cut into *parts*: small records by name, as an aggregate has them."""
    made: list[State] = [{} for _ in range(parts)]
    for n in range((megabytes << 20) // _ENTRY_BYTES):
        made[n % parts][f"user-{n:09}"] = {"count": n, "total": n * 1.5, "name": f"n{n}" * 8 + "x" * 60}
    return made


def save(keeper: SafeKeeper, parts: Sequence[Any]) -> int:
    """Save all *parts* and wait until they are durable; how many bytes that were."""
    before = keeper.metrics().bytes_written
    for ticket in [keeper.save(_id(n), part, frozen=True) for n, part in enumerate(parts)]:
        ticket.result()
    return keeper.metrics().bytes_written - before


def save_by_fork(keeper: SafeKeeper, codec: Codec, parts: Sequence[Any]) -> int:
    """The same, by a child that has all as it is now. *keeper* has no serializer."""
    before = keeper.metrics().bytes_written
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads; the child uses nothing of theirs
        child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, "wb") as pipe:
                for part in parts:
                    value = codec.encode(part)
                    pipe.write(_LENGTH.pack(len(value)))
                    pipe.write(value)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        tickets = [keeper.save(_id(n), pipe.read(*_LENGTH.unpack(pipe.read(8)))) for n in range(len(parts))]
    os.waitpid(child, 0)
    for ticket in tickets:
        ticket.result()
    return keeper.metrics().bytes_written - before


def _compute() -> None:
    while True:
        sum(range(100))


def _id(number: int) -> CheckpointId:
    return CheckpointId("parts", b"%d" % number)


def measure(checkpoint: Callable[[], int], seconds: float) -> tuple[list[float], float, int]:
    """What the ticker notes in *seconds*, or until a checkpoint that is made meanwhile is durable; how long that took
    and how many bytes it had."""
    gc.collect()
    ticker = Ticker()
    ticker.start()
    began = time.perf_counter()
    nbytes = checkpoint()
    took = time.perf_counter() - began
    time.sleep(max(seconds - took, 0.0))
    return ticker.stop(), took, nbytes


def compare(folder: Path, parts: int, options: argparse.Namespace) -> dict[str, Pauses]:
    """All arms with the state in so many parts."""
    state = states(options.megabytes, parts)
    codec = Codec(serializer_named("msgpack"))
    serializers: dict[str, Serializer | None] = {"whole": Whole(), SLICES: serializer_named("msgpack"), "fork": None}
    keepers = {
        name: SafeKeeper(f"log://{folder}/{parts}-{name}", serializer=serializer)
        for name, serializer in serializers.items()
    }
    arms: dict[str, Callable[[], int]] = {
        NONE: lambda: 0,
        "whole": lambda: save(keepers["whole"], state),
        SLICES: lambda: save(keepers[SLICES], state),
        "fork": lambda: save_by_fork(keepers["fork"], codec, state),
    }
    names = [name for name in arms if name == NONE or options.only in name]
    found = {name: Pauses() for name in names}
    try:
        for turn in range(-1, options.rounds):
            for name in rotated(names, turn):
                noted = measure(arms[name], options.seconds)
                if turn >= 0:
                    found[name].note(*noted)
    finally:
        for keeper in keepers.values():
            keeper.close()
    return found


def table(parts: int, found: dict[str, Pauses]) -> Table:
    """One row an arm; medians over the rounds."""
    table = Table(title=f"{parts} parts: how late a ticker of 1 ms comes, in ms", title_justify="left")
    for column in ("arm", "p50", "p99", "p99.9", "longest", "five longest of all", "MB saved", "s a checkpoint"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for name, pauses in found.items():
        longest = sorted(one for some in pauses.longest for one in some)[-5:]
        table.add_row(
            name,
            *(f"{median(values):.2f}" for values in (pauses.p50, pauses.p99, pauses.p999)),
            f"{median(some[-1] for some in pauses.longest):.1f}",
            " ".join(f"{one:.1f}" for one in longest),
            f"{pauses.nbytes / 2**20:.0f}" if name != NONE else "",
            f"{median(pauses.seconds):.2f}" if name != NONE else "",
        )
    return table


def goals(parts: int, found: dict[str, Pauses]) -> list[Goal]:
    """What is to hold for the keeper's way."""
    none, ours = found[NONE], found[SLICES]
    late = median(a - b for a, b in zip(ours.p999, none.p999, strict=True))
    longest = median(a[-1] - b[-1] for a, b in zip(ours.longest, none.longest, strict=True))
    said = [
        Goal(f"{parts} parts: longest pause at most 30 ms above none's: {longest:+.1f} ms", longest <= LONGEST_ABOVE)
    ]
    if parts > 1:
        said.append(Goal(f"{parts} parts: p99.9 at most 5 ms above none's: {late:+.2f} ms", late <= P999_ABOVE))
    return said


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less state and fewer rounds")
    parser.add_argument("--only", default="", help="the arms whose name contains this")
    parser.add_argument("--parts", type=int, nargs="*", default=PARTS)
    parser.add_argument("--megabytes", type=int, help="of state, as bytes of msgpack")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each arm in each round, with one checkpoint in it")
    parser.add_argument("--busy", action="store_true", help="another thread computes all the time")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    options.megabytes = options.megabytes or (16 if options.quick else 128)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 4.0)
    console, kept = Console(), {}
    if options.busy:
        threading.Thread(target=_compute, name="busy", daemon=True).start()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for parts in options.parts:
            found = compare(Path(folder), parts, options)
            console.print(table(parts, found))
            if SLICES in found and not options.busy:
                for goal in goals(parts, found):
                    print(goal)
            kept[parts] = {name: vars(pauses) for name, pauses in found.items()}
    if options.json is not None:
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
