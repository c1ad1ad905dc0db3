"""The story: words stream in, a service counts them, everything is killed all the time, the counts are exact.

    python -m safekeeper.operators.demo [--words 60000] [--seed N]

It starts a Redis server of its own, which keeps the streams; the service's journal is a `log:` store in a temporary
folder that is named and left to look at.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from safekeeper.dev.process import DevError
from safekeeper.dev.redis import RedisServer
from safekeeper.errors import SafekeeperError, Unavailable
from safekeeper.operators.demo.feeder import word
from safekeeper.streams import Inlet, open_inlet
from safekeeper.testing.chaos import Chaos
from safekeeper.testing.proxy import Proxy

_A_SECOND = 3_000
_SYNCED: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": "0"}


class Dashboard:
    """Reads what the service sends, and looks at each element: the next count of its word, or something is wrong."""

    def __init__(self, counts: Inlet) -> None:
        self._inlet = counts
        self.counts: Counter[bytes] = Counter()
        self.wrong: list[str] = []
        """What was lost or came twice."""
        self.longest_silence = 0.0
        """Seconds between two batches of elements."""
        self._heard = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def words(self) -> int:
        """How many words are counted."""
        return self.counts.total()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                elements = self._inlet.read(timeout=0.2)
            except Unavailable:
                continue
            if not elements:
                continue
            self.longest_silence = max(self.longest_silence, time.monotonic() - self._heard)
            self._heard = time.monotonic()
            for element in elements:
                self.counts[element.key] += 1
                if int(element.body) != self.counts[element.key]:
                    self.wrong.append(
                        f"{element.key.decode()}: {int(element.body)} after {self.counts[element.key] - 1}"
                    )
            self._inlet.acknowledge(elements[-1].number)

    def close(self) -> None:
        """Stop reading."""
        self._ending.set()
        self._thread.join()


class ServicesDemo:
    """One run, in *folder*, over *words* words, with harm by *seed* until they are counted."""

    def __init__(self, folder: Path, console: Console, words: int, seed: int | None = None) -> None:
        self._folder, self._console, self._words, self._seed = folder, console, words, seed
        self.chaos = Chaos(seed=seed, pause=(0.2, 1.5), say=lambda text: console.print(f"[dim]{text}[/]"))
        columns = (TextColumn("counted"), BarColumn(), MofNCompleteColumn(), TextColumn("words"), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[harm]}"), console=console)

    def run(self) -> bool:
        """Tell the story; whether all counts were exact."""
        say = self._console.print
        say(f"[bold]{self._words:,} words[/] stream in, {_A_SECOND:,} a second; a service counts each, exactly once.")
        say("Who sends them and who counts them is killed and stopped, and their way to Redis is cut, all the time.")
        with ExitStack() as stack:
            redis = stack.enter_context(RedisServer(self._folder / "redis", **_SYNCED))
            say(f"The streams are in [bold]{redis.url}[/], the journal in [bold]log://{self._folder}/journal[/]")
            inlet = stack.enter_context(closing(open_inlet(f"{redis.url}?stream=counts", reader="dashboard")))
            dashboard = stack.enter_context(closing(Dashboard(inlet)))
            chaos = stack.enter_context(self.chaos)
            proxy = stack.enter_context(closing(Proxy(redis.port)))
            chaos.link("the way to Redis", proxy)
            self._start(proxy.url)
            with self._progress:
                self._follow(chaos, dashboard)
        return self._compare(dashboard)

    def _start(self, broker: str) -> None:
        environment = os.environ | {"STORE": f"log://{self._folder}/journal", "BROKER": broker}

        def start(module: str, *words: str) -> Any:
            command = [sys.executable, "-m", f"safekeeper.operators.demo.{module}", *words]
            with (self._folder / "services.log").open("ab") as log:
                return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

        self.chaos.process("counter", lambda: start("counter"))
        feeder = ("feeder", f"{broker}?stream=words", str(self._words), str(_A_SECOND))
        self.chaos.process("feeder", lambda: start(*feeder))

    def _follow(self, chaos: Chaos, dashboard: Dashboard) -> None:
        bar = self._progress.add_task("words", total=self._words, harm="")
        patience = 300 + self._words / 500

        def counted() -> bool:
            harm = ", ".join(f"{count} {deed}" for deed, count in sorted(chaos.done.items()))
            self._progress.update(bar, completed=dashboard.words, harm=harm)
            return dashboard.words >= self._words or bool(dashboard.wrong)

        chaos.run(until=counted, timeout=patience)

    def _compare(self, dashboard: Dashboard) -> bool:
        truth = Counter(word(number) for number in range(1, self._words + 1))
        table = Table("word", "sent", "counted", box=None, header_style="bold")
        for each, count in truth.most_common(5):
            table.add_row(each.decode(), f"{count:,}", f"{dashboard.counts[each]:,}")
        self._console.print(table)
        harm = ", ".join(f"{deed} {count} times" for deed, count in sorted(self.chaos.done.items()))
        self._console.print(f"Harm: {harm}. The longest silence was {dashboard.longest_silence:.1f} s.")
        if dashboard.wrong or dashboard.counts != truth:
            self._console.print(f"[bold red]WRONG[/]: {'; '.join(dashboard.wrong[:5]) or 'the counts differ'}")
            return False
        self._console.print(f"[bold green]All {len(truth)} counts are exact[/], and each came once and in order.")
        return True


def main() -> None:
    """Run it; exit code 1 if a count is wrong."""
    parser = argparse.ArgumentParser(prog="python -m safekeeper.operators.demo", description=__doc__)
    parser.add_argument("--words", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="safekeeper-demo-"))
    console = Console(highlight=False)
    try:
        exact = ServicesDemo(folder, console, arguments.words, arguments.seed).run()
    except (SafekeeperError, DevError, TimeoutError) as error:
        console.print(f"[red]{error}[/]; what the services said is in {folder}/services.log")
        sys.exit(2)
    console.print(f"Look around: safekeeper journal log://{folder}/journal")
    sys.exit(0 if exact else 1)


if __name__ == "__main__":
    main()
