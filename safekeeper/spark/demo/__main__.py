"""The story: make a stream, count its words, kill the Spark driver half-way, start it again, compare.

    python -m safekeeper.spark.demo [URL]

Without a URL the state goes to a `log:` store, below a temporary folder that is named and left to look at.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import safekeeper
from safekeeper.errors import SafekeeperError
from safekeeper.spark.demo.words import WORDS_PER_FILE, Counts, stream

_SECONDS_BETWEEN_FILES = 0.3
Batch = dict[str, int]
"""What the Spark driver tells of a batch; see `query`."""


class DriverFailed(Exception):
    """The Spark driver ended by itself, which it should not."""


class DemoDriver:
    """A running Spark driver, with the query in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self._log = folder / "driver.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "safekeeper.spark.demo.query", str(folder), url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.pid = self._process.pid
        self.jvm = 0
        """The process of its JVM, once Spark has started."""

    def batches(self) -> Iterator[Batch]:
        """What it tells of each batch, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            self.jvm = told.get("jvm", self.jvm)
            if "batch" in told:
                yield told

    def kill(self) -> None:
        """End it the hard way: it cannot finish anything."""
        for pid in (self.jvm, self.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.communicate()

    def finish(self) -> None:
        """Let it count what is there and end; go on reading `batches` meanwhile."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None  # or `communicate` would use it

    def check(self) -> None:
        """Wait for its end. Raise `DriverFailed` if that was not a good one. It may be called again."""
        if self._process.returncode is None:
            self._process.communicate()
        if self._process.returncode:
            raise DriverFailed("\n".join(self._log.read_text().splitlines()[-20:]))


class Demo:
    """One run, in *folder*, with the state at *url*, over a stream of *files* files."""

    def __init__(self, folder: Path, url: str, console: Console, files: int = 20) -> None:
        self._folder, self._url, self._say, self._files = folder, url, console.print, files
        self._words = files * WORDS_PER_FILE
        columns = (TextColumn("counted"), BarColumn(), MofNCompleteColumn(), TextColumn("words"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._bar = self._progress.add_task("words", total=self._words)
        self._truth: Counts = Counter()
        self._batches: dict[int, Batch] = {}

    def run(self) -> bool:
        """Tell the story; whether all counts were exact."""
        self._say(
            f"[bold]{self._words:,} words[/] stream in, in {self._files} files; Spark counts each word of each minute."
        )
        self._say(f"The state of the query is kept in [bold]{self._url}[/]")
        writer = Thread(target=self._write_words, daemon=True)
        writer.start()
        with self._progress:
            first = DemoDriver(self._folder, self._url)
            self._follow(first, self._words // 2)
            first.kill()
            self._say(f"[bold red]kill -9[/] of the Spark driver ({first.pid}) and its JVM ({first.jvm}), amid a batch")
            second = DemoDriver(self._folder, self._url)
            self._say(f"[bold green]started again[/]: process {second.pid}")
            writer.join()
            second.finish()
            self._follow(second, self._words)
            second.check()
        self._say_where_the_state_lies()
        self._say_what_a_commit_costs()
        return self._compare()

    def _write_words(self) -> None:
        for counts in stream(self._folder / "words", self._files):
            self._truth = counts
            time.sleep(_SECONDS_BETWEEN_FILES)

    def _follow(self, driver: DemoDriver, words: int) -> None:
        """Show how the Spark driver gets on, until that many words are counted."""
        for batch in driver.batches():
            self._batches[batch["batch"]] = batch
            counted = sum(batch["words"] for batch in self._batches.values())
            self._progress.update(self._bar, completed=counted)
            if counted >= words:
                return
        driver.check()

    def _say_where_the_state_lies(self) -> None:
        with safekeeper.open(self._url) as store:
            groups = sorted(store.groups())
            commits = sum(1 for group in groups for _ in store.keys(group))
        self._say(f"\nThe state: {commits} commits in {self._url}, one group for each of {len(groups)} partitions:")
        for group in groups:
            self._say(f"    {group}", highlight=False)

    def _say_what_a_commit_costs(self) -> None:
        batches = list(self._batches.values())[1:]  # in the first one the JVM is still warming up
        commit = statistics.median(batch["commit_ms"] / batch["commits"] for batch in batches)
        trigger = statistics.median(batch["trigger_ms"] for batch in batches)
        size = statistics.median(batch["bytes"] / batch["commits"] for batch in batches)
        self._say(
            f"A commit of a partition, durable when it returns, took {commit:.0f} ms and {size:,.0f} bytes; "
            f"a batch took {trigger:.0f} ms (medians)."
        )

    def _compare(self) -> bool:
        counted: Counts = Counter()
        for file in sorted((self._folder / "counts").glob("*.json")):
            for minute, word, count in json.loads(file.read_text()):
                counted[minute, word] = count
        table = Table("minute", "word", "in the stream", "counted", title="The most frequent words")
        for (minute, word), count in self._truth.most_common(5):
            table.add_row(minute, word, f"{count:,}", f"{counted[minute, word]:,}")
        self._say(table)
        wrong = {key for key in {*self._truth, *counted} if self._truth[key] != counted[key]}
        if wrong:
            self._say(f"[bold red]{len(wrong)} of {len(self._truth):,} counts are wrong[/]")
        else:
            self._say(f"[bold green]All {len(self._truth):,} counts are exact.[/]")
        return not wrong


def main() -> int:
    """Run the demo; 0 if all counts were exact."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="safekeeper-demo-"))
    url = sys.argv[1] if len(sys.argv) > 1 else f"log://{folder}/state"
    try:
        exact = Demo(folder, url, console).run()
    except (DriverFailed, SafekeeperError) as error:
        console.print(f"[bold red]The demo failed.[/] {error}", highlight=False)
        return 1
    console.print(f"Everything is in {folder}: look at it, remove it.", highlight=False)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
