"""Adds the Spark bridge's jar to a wheel that is built where PySpark and a JDK are; the rest is in pyproject.toml.

Elsewhere, as in an isolated build (PySpark is too large to be asked for), the wheel has the Java sources only and the
jar is made at first use.
"""

from __future__ import annotations

import importlib.util
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
        for jar in self._jars():
            self.mkpath(str(jar.parent))
            home = bridge.spark_home()
            bridge.build(bridge.source_folders(bridge.spark_version(home)), home, jar, bridge.STRICT)

    def get_outputs(self) -> list[str]:
        return [str(jar) for jar in self._jars()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def get_source_files(self) -> list[str]:
        folders = (bridge.SOURCES, bridge.SHIMS)
        return [path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.java")]

    def _jars(self) -> list[Path]:
        """The one jar to build; none in an editable install, whose sources change, or where something is missing."""
        if self.editable_mode:
            return []
        try:
            bridge.find_tool("javac")
            name = bridge.jar_name(bridge.spark_version(bridge.spark_home()))
        except bridge.BuildError:
            return []
        return [Path(str(self.build_lib), "safekeeper", "spark", "jars", name)]


class BuildWithJar(build):
    """The usual build, then the jar."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_jar", None)]
