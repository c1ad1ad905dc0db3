"""A heap that is too small for a state ends a task, and not the executor: each test has a small JVM of its own."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from safekeeper.spark.build import find_tool


@pytest.fixture
def full_heap(class_path: str, world: Any) -> Any:
    """Fills the heap of a JVM; the lines that it prints."""

    def run(how: str) -> list[str]:
        command = [find_tool("java"), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", class_path, "io.safekeeper.spark.FullHeap"]
        command += [how, str(world.checkpoint), *(f"{name}={value}" for name, value in world.settings.items())]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout.splitlines()

    return run


@pytest.mark.parametrize("how", ("plain", "lists", "scanned"))
def test_a_put_without_memory_fails_the_task_with_the_sizes_and_aborts_the_store(full_heap: Any, how: str) -> None:
    fatal, says, after, then = full_heap(how)
    assert fatal == "fatal false"  # Spark would end the executor
    sizes = re.search(
        r"not enough memory to change the state of .*: (\d+) keys took (\d+) MB, and the heap .* 6\d MB", says
    )
    assert sizes, says
    assert int(sizes[1]) > 10_000
    assert int(sizes[2]) > 15
    assert "spark.executor.memory" in says
    assert after == "after it [0:-1=committed]"
    assert then == "and then 2"


def test_a_load_without_memory_fails_the_task_and_not_the_executor(full_heap: Any, world: Any) -> None:
    provider = world.provider()
    provider.open(0, None).putMany(80_000, 1000, 1).commit()
    fatal, *says = full_heap("load")
    assert fatal == "fatal false"
    assert "not enough memory to load the state" in " ".join(says)
