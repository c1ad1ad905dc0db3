"""A jar that is for another minor version of Spark says so, before one of its methods is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from safekeeper.spark import build


def test_a_jar_for_another_minor_version_is_refused_in_a_sentence(class_path: str, world: Any, tmp_path: Path) -> None:
    minor = build.spark_version(build.spark_home())
    _, *shims = build.source_folders(minor)
    (names,) = (file for folder in shims for file in folder.rglob("MinorShim.java"))
    (checks,) = build.SOURCES.rglob("RunningSpark.java")
    other = tmp_path / "MinorShim.java"
    other.write_text(names.read_text().replace(f'"{minor}"', '"4.9"'))
    command = [build.find_tool("javac"), "-proc:none", "-cp", class_path, "-d", str(tmp_path / "other")]
    subprocess.run([*command, str(other), str(checks)], check=True, timeout=300)
    command = [build.find_tool("java"), "-XX:TieredStopAtLevel=1", "-cp", f"{tmp_path}/other:{class_path}"]
    ended = subprocess.run(
        [*command, "io.safekeeper.spark.FullHeap", "load", str(world.checkpoint)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = f"safekeeper's jar is for Spark 4.9, and this is Spark {minor}."
    assert said in ended.stdout + ended.stderr
    assert "set SPARK_HOME to this one" in ended.stdout + ended.stderr
