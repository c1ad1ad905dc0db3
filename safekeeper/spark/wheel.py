"""Adds the Spark bridge's jars to a wheel; the rest is in pyproject.toml.

A release has the jars for all minor versions of Spark: `python -m safekeeper.dev.release` names a folder with each of
them in SAFEKEEPER_SPARK_HOMES. Without that, a wheel that is built where PySpark and a JDK are has the jar for that
Spark. Elsewhere, as in an isolated build (PySpark is too large to be asked for), the wheel has the Java sources only
and the jar is made at first use.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import ClassVar

from setuptools import Command
from setuptools.command.build import build

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("build_jar", Path(__file__).with_name("build.py"))
assert spec is not None
assert spec.loader is not None
bridge = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bridge)


class BuildJar(Command):
    """Compile the bridge into the wheel."""

    user_options: ClassVar = []
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        for jar, home in self._jars().items():
            self.mkpath(str(jar.parent))
            bridge.build(bridge.source_folders(bridge.spark_version(home)), home, jar, bridge.STRICT)

    def get_outputs(self) -> list[str]:
        return [str(jar) for jar in self._jars()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        folders = (bridge.SOURCES, bridge.SHIMS)
        return [path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.java")]

    def _jars(self) -> dict[Path, Path]:
        """The jars to build, each with its Spark; none in an editable install, whose sources change."""
        if self.editable_mode:
            return {}
        if homes := os.environ.get("SAFEKEEPER_SPARK_HOMES"):
            return {self._jar(home): home for home in map(Path, homes.split(os.pathsep))}
        try:
            bridge.find_tool("javac")
            home = bridge.spark_home()
            return {self._jar(home): home}
        except bridge.BuildError:  # something is missing
            return {}

    def _jar(self, home: Path) -> Path:
        name = bridge.jar_name(bridge.spark_version(home))
        return Path(str(self.build_lib), "safekeeper", "spark", "jars", name)


class BuildWithJar(build):
    """The usual build, then the jars."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_jar", None)]
