"""State beyond the heap: what its memory, its budget and its disk have no room for ends a task, and not the executor.

Each test of a limit has a small JVM of its own. What is freed is poisoned, so whoever reads too late shows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from safekeeper.spark import PREFIX
from safekeeper.spark.build import find_tool

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"

OPENED = ("--add-opens=java.base/java.nio=ALL-UNNAMED",)
"""What Spark gives to its JVMs."""


@pytest.fixture
def small_jvm(class_path: str) -> Any:
    """Runs a class of the tests in a JVM of its own, with a heap of 64 MB; the lines that it prints."""

    def run(
        name: str,
        *words: str,
        before: Sequence[str] = (),
        folder: Path | None = None,
        options: Sequence[str] = OPENED,
    ) -> list[str]:
        command = [*before, find_tool("java"), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Djava.io.tmpdir={folder}"] if folder else []
        command += ["-Dsafekeeper.poison=true", *options, "-cp", class_path]
        command += ["-XX:+DisplayVMOutputToStderr"]  # its warnings: some tests leave it little memory
        command += [f"io.safekeeper.spark.{name}", *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout.splitlines()

    return run


@pytest.fixture
def full_heap(small_jvm: Any, world: Any) -> Any:
    """Fills the memory of a JVM; the lines that it prints."""

    def run(
        how: str, *before: str, folder: Path | None = None, options: Sequence[str] = OPENED, **settings: int
    ) -> list[str]:
        chosen = world.settings | {PREFIX + name: value for name, value in settings.items()}
        words = [how, str(world.checkpoint), *(f"{name}={value}" for name, value in chosen.items())]
        return list(small_jvm("FullHeap", *words, before=before, folder=folder, options=options))

    return run


def test_a_state_of_four_times_the_heap_is_put_committed_and_loaded(full_heap: Any) -> None:
    assert full_heap("large") == ["keys 250000", "loaded 250000"]


def test_a_heap_without_room_for_the_order_of_keys_fails_the_task_with_the_sizes(full_heap: Any) -> None:
    fatal, says, after, then = full_heap("scanned")
    assert fatal == "fatal false"  # Spark would end the executor
    sizes = re.search(
        r"not enough memory to change the state of .*: (\d+) keys took (\d+) MB, and the heap .* 6\d MB", says
    )
    assert sizes, says
    assert int(sizes[1]) > 10_000
    assert int(sizes[2]) > 15
    assert "spark.executor.memory" in says
    assert (after, then) == ("after it [0:-1=committed]", "and then 2")


@pytest.mark.parametrize("how", ("plain", "lists"))
def test_a_budget_that_is_too_small_fails_the_task_and_names_the_setting(full_heap: Any, how: str) -> None:
    fatal, says, cause, after, then = full_heap(how, memoryBytes=2 << 20)
    assert fatal == "fatal false"
    assert re.search(r"to change the state of .*: \d+ keys took \d+ MB, and the indexes .* 1 MB, of 2 MB", says), says
    assert PREFIX + "memoryBytes" in says
    assert "UNABLE_TO_ACQUIRE_MEMORY" in cause
    assert (after, then) == ("after it [0:-1=committed]", "and then 2")


def test_a_family_that_there_is_no_room_for_fails_the_task_and_not_the_executor(full_heap: Any) -> None:
    fatal, says, cause, after, then = full_heap("family")
    assert fatal == "fatal false"
    assert "not enough memory to change the state of" in says
    assert "UNABLE_TO_ACQUIRE_MEMORY" in cause
    assert (after, then) == ("after it [0:-1=committed]", "and then 2")


def test_a_load_beyond_the_budget_fails_the_task_and_goes_on_after_the_setting_is_mended(
    full_heap: Any, world: Any
) -> None:
    world.provider().open(0, None).putMany(80_000, 100, 1).commit()
    fatal, *says = full_heap("load", memoryBytes=1 << 20)
    assert fatal == "fatal false"
    assert "not enough memory to load the state" in " ".join(says)
    assert full_heap("load", memoryBytes=16 << 20) == ["loaded 80000"]


def test_a_jvm_that_does_not_show_where_memory_is_gets_the_option_named(full_heap: Any, world: Any) -> None:
    world.provider().open(0, None).putMany(80_000, 100, 1).commit()
    fatal, *says = full_heap("load", options=())
    assert fatal == "fatal false"
    assert "Spark starts it with --add-opens=java.base/java.nio=ALL-UNNAMED" in " ".join(says)


def test_a_full_disk_fails_the_task_and_names_the_folder(full_heap: Any, small_disk: Any) -> None:
    inside, folder = small_disk("16m")
    fatal, says, _, after, then = full_heap("plain", *inside, folder=folder)
    assert fatal == "fatal false"
    assert f"local folders [{folder}] (No space left on device): make room there, or set spark.local.dir" in says
    assert (after, then) == ("after it [0:-1=committed]", "and then 2")


def test_of_two_folders_of_which_one_is_full_the_other_one_is_taken(
    small_jvm: Any, small_disk: Any, tmp_path: Path
) -> None:
    inside, full = small_disk("1m")
    assert small_jvm("state.StateMemoryModel", "folders", str(full), str(tmp_path), before=inside) == ["done"]


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="there is no prlimit here")
def test_a_process_without_addresses_or_a_folder_is_told_what_it_needs(small_jvm: Any) -> None:
    unmapped, refused, missing, done = small_jvm("state.StateMemoryModel", "unmapped")
    assert unmapped == (
        "a file of 64 MB cannot be mapped into this process's memory (Map failed): the executors need more mappings "
        "(vm.max_map_count), addresses (ulimit -v) or open files (ulimit -n)"
    )
    assert refused.startswith("the operating system gives this process no memory outside the heap")
    assert "ulimit -v" in refused
    assert "no file can be made for it in Spark's local folders [/nothing/here]" in missing
    assert "(No such file or directory)" in missing
    assert "mend that, or set spark.local.dir to folders that can be written to" in missing
    assert done == "done"


@pytest.mark.parametrize("commit", (True, False), ids=("committed", "aborted"))
def test_whoever_reads_too_late_is_refused_and_rows_he_kept_are_what_they_were(
    jvm: Any, world: Any, commit: bool
) -> None:
    """Rows, more iterators than are listed, and stores, after their task: others have freed and used the pages."""
    provider = world.provider()
    provider.open(0, None).putMany(3000, 1000, 1).commit()
    late = jvm.LateReader(provider)
    late.read(3000, commit)
    late.check("after the task")
    for version in range(1 + commit, 8):
        provider.open(version, None).putMany(3000, 1000, version).commit()
    provider.provider().close()
    late.check("after the pages were used again and freed")
    get, scan, step = late.readOn()
    ended = "COMMITTED" if commit else "ABORTED"
    assert (f"Cannot get after {ended}" in get, f"Cannot iterator after {ended}" in scan) == (True, True)
    assert step == "the store is closed: what it showed cannot be read any more"


def test_a_second_thread_that_outlives_its_task_is_refused_and_reads_nothing_wrong(small_jvm: Any, world: Any) -> None:
    """It reads, steps iterators and keeps rows while its task ends and others free, unmap and use the pages again."""
    settings = [f"{name}={value}" for name, value in world.settings.items()]
    said = small_jvm("SecondThread", "100" if LONG else "4", str(world.checkpoint), *settings)
    assert said == ["committed", "aborted", "opened by the second", "all is freed"]


def test_rows_that_there_was_no_memory_to_copy_are_copied_at_the_next_end(jvm: Any) -> None:
    assert jvm.HandedRowsModel.noMemoryToEnd() == "no copy 1, true 3"
    assert jvm.HandedRowsModel.noMemoryToUse() == "64 true true"


def test_rows_that_nobody_has_any_more_keep_no_pages(jvm: Any) -> None:
    assert not jvm.HandedRowsModel.areKeptByNobody()


def test_an_interrupted_task_leaves_the_pages_of_others_alone(jvm: Any) -> None:
    jvm.state.StateMemoryModel.interrupted()


def test_records_larger_than_a_page_take_no_descriptors(jvm: Any) -> None:
    jvm.state.StateMemoryModel.many()


def test_a_log_that_there_is_no_room_for_leaves_nothing(jvm: Any) -> None:
    jvm.state.StateMemoryModel.withoutRoom()
