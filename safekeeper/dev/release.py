"""Makes what is published: an sdist, and a wheel with the bridge's jars for all minor versions of Spark.

    python -m safekeeper.dev.release FOLDER         where the project is; it takes a JDK, Maven and `build`
    python -m safekeeper.dev.release --try FOLDER   its wheel in a new environment with each PySpark, with a JRE only

Each jar is compiled against the newest release of its minor version, and its symbols are looked up in all of them. With
`--try` nobody finds a compiler, and the demonstration of the README runs: a query that is killed and counts exactly.
Then checkpoints of an aggregation, a deduplication, session windows and a join go from the oldest Spark to the newest
and back, and every row is compared (`spark_walk.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from safekeeper.dev.linkage import missing_symbols
from safekeeper.dev.process import DevError
from safekeeper.dev.spark_jars import as_home, from_maven, from_pip, releases, with_others_of
from safekeeper.dev.spark_walk import CheckpointWalk


def main(arguments: list[str]) -> int:
    """Do what was asked for; 1 if it cannot be done, with the reason on standard error."""
    try:
        match arguments:
            case ["--try", folder]:
                try_wheel(newest_wheel(Path(folder).resolve()))
            case [folder]:
                print(make(Path(folder).resolve()))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except DevError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def make(folder: Path) -> Path:
    """Build into *folder*, check that every jar links against every release of its Spark, and return the wheel."""
    found = releases()
    newest = {minor: from_pip(patches[-1]) for minor, patches in found.items()}
    with tempfile.TemporaryDirectory() as scratch:
        homes = [as_home(jars, Path(scratch, minor)) for minor, jars in newest.items()]
        environment = os.environ | {"SAFEKEEPER_SPARK_HOMES": os.pathsep.join(map(str, homes))}
        subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder)], env=environment, check=True)
    wheel = newest_wheel(folder)
    for minor, patches in found.items():
        for patch in patches:
            check_jar(wheel, minor, jars_of(patch, newest[minor]), patch)
    return wheel


def newest_wheel(folder: Path) -> Path:
    """The wheel that was made last."""
    if not (wheels := list(folder.glob("safekeeper-*.whl"))):
        raise DevError(f"{folder} has no wheel: python -m safekeeper.dev.release {folder}")
    return max(wheels, key=lambda path: path.stat().st_mtime)


def jars_of(patch: str, newest: list[Path]) -> list[Path]:
    """The jars of a release; what Maven does not have of it is taken as in the *newest* one of its minor version."""
    try:
        return with_others_of(from_maven(patch), newest)
    except DevError:
        return from_pip(patch)


def check_jar(wheel: Path, minor: str, jars: list[Path], patch: str) -> None:
    """Raise `DevError` if the wheel's jar for Spark *minor* does not link against *jars*, those of *patch*."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if f"/safekeeper-spark-{minor}-" in name)
        missing = missing_symbols(Path(archive.extract(name, scratch)), jars)
    if missing:
        raise DevError(f"the jar for Spark {minor} does not link against {patch}: {'; '.join(missing)}")
    print(f"the jar for Spark {minor} links against {patch}", flush=True)


def try_wheel(wheel: Path) -> None:
    """Install *wheel* beside the newest PySpark of each minor version, and let queries run there without a JDK."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = without_jdk(Path(scratch, "jre"))
        environment["XDG_CACHE_HOME"] = str(Path(scratch, "cache"))  # which has no jar
        pythons: dict[str, str] = {}
        for patches in releases().values():
            folder = Path(scratch, patches[-1])
            venv.create(folder, with_pip=True)
            python = pythons[patches[-1]] = str(folder / "bin" / "python")
            packages = [f"safekeeper[spark] @ file://{wheel}", f"pyspark=={patches[-1]}"]
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
            print(f"PySpark {patches[-1]}, a JRE and no compiler:", flush=True)
            subprocess.run([python, "-m", "safekeeper.spark.demo"], cwd=scratch, env=environment, check=True)
        for format in ("1", "2"):
            folder = Path(scratch, f"format-{format}")
            folder.mkdir()
            go_through([*pythons.items(), *list(pythons.items())[-2::-1]], folder, format, environment)


def go_through(pythons: list[tuple[str, str]], folder: Path, format: str, environment: dict[str, str]) -> None:
    """Let one Spark after the other go on with the same checkpoints, and raise `DevError` if a row is wrong."""
    walk = CheckpointWalk(folder)
    for version, python in pythons:
        expected = walk.step()
        command = [python, "-m", "safekeeper.dev.spark_query", str(folder), format]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        if wrong := [name for name in expected if found[name] != expected[name]]:
            raise DevError(f"checkpoints of format {format} do not go on with Spark {version}: {', '.join(wrong)}")
        print(f"checkpoints of format {format} go on with Spark {version}: {', '.join(expected)}", flush=True)


def without_jdk(folder: Path) -> dict[str, str]:
    """An environment whose path has all programs of this one's in *folder*, but no compiler."""
    folder.mkdir()
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in place.iterdir() if place.is_dir() else ():
            if program.name != "javac" and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return environment | {"PATH": str(folder)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
