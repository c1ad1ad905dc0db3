"""The jar: made once, whole, the same every time, and a sentence where it cannot be made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import safekeeper.bench.studies.spark
from safekeeper.dev import spark_jars
from safekeeper.dev.linkage import missing_symbols
from safekeeper.spark import PROVIDER, BadSetup, build, jar

OTHERS = ("4.0.4", "4.1.3", "4.2.0")
"""The newest releases of older minor versions that Maven has."""

FLOOR = Path(safekeeper.bench.studies.spark.__file__).parent / "java"
CLASS = "package p; public final class {0} {{ {1} }}"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no jar that came with the wheel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "nowhere")
    return tmp_path / "cache" / "safekeeper"


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Sources that compile in no time, in place of ours."""
    folder = tmp_path / "java" / "p"
    folder.mkdir(parents=True)
    (folder / "One.java").write_text(CLASS.format("One", ""))
    (folder / "Two.java").write_text(CLASS.format("Two", "private static final One ONE = new One();"))
    monkeypatch.setattr(build, "SOURCES", folder.parent)
    monkeypatch.setattr(build, "SHIMS", tmp_path / "no shims")
    return folder


def test_the_bridge_compiles_without_a_warning_and_holds_the_provider(tmp_path):
    """With the jars that a release is compiled against, and no other."""
    installed = (build.spark_home() / "jars").glob("*.jar")
    home = spark_jars.as_home((jar for jar in installed if jar.name.startswith(spark_jars.USED)), tmp_path / "home")
    build.build(build.source_folders(build.spark_version(home)), home, tmp_path / "bridge.jar", build.STRICT)
    with zipfile.ZipFile(tmp_path / "bridge.jar") as bridge:
        assert PROVIDER.replace(".", "/") + ".class" in bridge.namelist()
        assert bridge.namelist()[0] == "META-INF/MANIFEST.MF"


@pytest.mark.parametrize("release", OTHERS)
def test_it_compiles_and_links_with_other_minor_versions_of_spark(release, tmp_path):
    """The floor of the benchmark, too, which shares the shim. `python -m safekeeper.dev.release` tries all releases."""
    installed = (build.spark_home() / "jars").glob("*.jar")
    home = spark_jars.as_home(spark_jars.with_others_of(spark_jars.from_maven(release), installed), tmp_path / "home")
    folders = (*build.source_folders(release.rpartition(".")[0]), FLOOR)
    build.build(folders, home, tmp_path / "bridge.jar", build.STRICT)
    assert missing_symbols(tmp_path / "bridge.jar", (home / "jars").glob("*.jar")) == []


@pytest.mark.parametrize(
    ("package", "uses"),
    (("", {"agent", "commits", "shim", "state"}), ("commits", {"agent", "state"}), ("state", set()), ("agent", set())),
    ids=("spark", "commits", "state", "agent"),
)
def test_the_packages_of_the_bridge_use_each_other_in_one_direction(package, uses):
    files = list((build.SOURCES / "io" / "safekeeper" / "spark" / package).glob("*.java"))
    assert files
    for file in files:
        code = re.sub(r"^package .*;$", "", file.read_text(), flags=re.MULTILINE)
        named = re.findall(r"\bio\.safekeeper\.spark\.(?:([a-z]+)\.)?", code)
        assert set(named) <= uses, file


def test_every_minor_version_has_the_same_classes_in_its_shim_and_they_use_nothing_of_ours():
    classes, used = [], set()
    for minor in build.SUPPORTED:
        _, *shims = build.source_folders(minor)
        used.update(shims)
        files = [(folder, file) for folder in shims for file in folder.rglob("*.java")]
        classes.append(sorted(file.relative_to(folder) for folder, file in files))
        assert not any(re.search(r"^import io\.safekeeper", file.read_text(), re.MULTILINE) for _, file in files)
    assert len(classes[0]) == len(set(classes[0])) == 8
    assert all(others == classes[0] for others in classes)
    assert set(build.SHIMS.iterdir()) == used


def test_nothing_is_done_by_reflection():
    means = r"java\.lang\.reflect|java\.lang\.invoke|getDeclared|setAccessible|[cC]lass\.?[fF]orName"
    files = [file for folder in (build.SOURCES, build.SHIMS) for file in folder.rglob("*.java")]
    assert [file for file in files if re.search(means, file.read_text())] == []


def test_the_same_sources_give_the_same_bytes(sources, tmp_path):
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for target in jars:
        build.build([sources], build.spark_home(), target)
    assert jars[0].read_bytes() == jars[1].read_bytes()


def test_a_jar_is_made_once_and_again_when_the_sources_change(cache, sources, monkeypatch):
    first = jar()
    (sources / "One.java").write_text(CLASS.format("One", "int changed;"))
    second = jar()
    assert first != second
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # nothing could be compiled any more
    assert jar() == second
    assert {path.name for path in cache.iterdir()} == {Path(first).name, Path(second).name, "lock"}


@pytest.mark.parametrize("what", ("folder", "jar"))
def test_nobody_else_can_put_a_jar_into_the_cache(cache, sources, what):
    """A folder or a jar of ours that others could change is closed; one that is not ours is refused."""
    path = {"folder": cache, "jar": Path(jar())}[what]
    path.chmod(0o777)
    jar()
    assert path.stat().st_mode & 0o022 == 0
    target = path.rename(path.with_name("elsewhere"))
    path.symlink_to(target)
    with pytest.raises(BadSetup, match=f"^{path} belongs to somebody else or can be changed by others, .*XDG_CACHE"):
        jar()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ("folder", "jar"))
def test_a_jar_of_somebody_else_is_refused(cache, sources, what):
    os.chown({"folder": cache, "jar": Path(jar())}[what], 12345, 12345)
    with pytest.raises(BadSetup, match="belongs to somebody else"):
        jar()


def test_a_jar_that_came_with_the_wheel_is_used(cache, sources, tmp_path, monkeypatch):
    shipped = tmp_path / "nowhere" / build.jar_name(build.spark_version(build.spark_home()))
    shipped.parent.mkdir()
    shipped.touch()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert jar() == str(shipped)
    assert not cache.exists()


def test_processes_that_need_it_at_the_same_time_make_it_once(cache, tmp_path):
    log = tmp_path / "compilations"
    javac = tmp_path / "jdk" / "bin" / "javac"
    javac.parent.mkdir(parents=True)
    javac.write_text(f'#!/bin/sh\necho compiling >> {log}\nexec "{build.find_tool("javac")}" "$@"\n')
    javac.chmod(0o755)
    code = (
        "import pathlib; from safekeeper.spark import build; build.SHIPPED = pathlib.Path('/nowhere')\n"
        f"build.SOURCES = pathlib.Path({str(_tiny(tmp_path))!r}); build.SHIMS = build.SHIPPED; print(build.find_jar())"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"JAVA_HOME": str(tmp_path / "jdk")},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    printed = {child.communicate(timeout=120)[0] for child in children}
    assert len(printed) == 1
    assert Path(printed.pop().strip()).parent == cache
    assert log.read_text() == "compiling\n"


def _tiny(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "One.java").write_text("final class One { }")
    return folder


def test_a_build_that_fails_leaves_nothing_behind_and_says_where_the_error_is(cache, sources):
    (sources / "Two.java").write_text(CLASS.format("Two", "int two = missing;"))
    with pytest.raises(BadSetup, match=r"does not compile with .*Two\.java:1: error: cannot find symbol$"):
        jar()
    assert [path.name for path in cache.iterdir()] == ["lock"]


def _spark(folder, version):
    (folder / "jars").mkdir(parents=True)
    (folder / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("environment", "says"),
    (
        pytest.param(
            lambda tmp: {"JAVA_HOME": str(tmp)}, "there is no javac in JAVA_HOME=.*install a JDK", id="JAVA_HOME"
        ),
        pytest.param(lambda tmp: {"JAVA_HOME": "", "PATH": str(tmp)}, "no javac on the path: install", id="no JDK"),
        pytest.param(lambda tmp: {"SPARK_HOME": str(tmp)}, "holds no Spark .* correct SPARK_HOME", id="no Spark"),
        pytest.param(
            lambda tmp: {"SPARK_HOME": _spark(tmp / "old", "3.5.9")},
            "^there is no bridge for Spark 3.5, only for 4.0, 4.1, 4.2, 4.3: change PySpark$",
            id="old",
        ),
        pytest.param(
            lambda tmp: {"SPARK_HOME": _spark(tmp / "new", "4.4.0")},
            "^there is no bridge for Spark 4.4, only for 4.0, 4.1, 4.2, 4.3: change PySpark$",
            id="new",
        ),
        pytest.param(
            lambda tmp: {"SPARK_HOME": _spark(tmp / "first", "4.0.4")},
            "^there is no bridge for Spark 4.0.4, only from 4.0.5 on: change PySpark$",
            id="first releases of 4.0",
        ),
    ),
)
def test_what_is_missing_is_one_line(cache, sources, tmp_path, monkeypatch, environment, says):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadSetup, match=says) as raised:
        jar()
    assert "\n" not in str(raised.value)


def test_without_pyspark_it_says_what_to_install(cache, tmp_path):
    shutil.copy(build.__file__, tmp_path / "build.py")
    code = "import build\ntry: build.find_jar()\nexcept build.BuildError as error: print(error)"
    bare = subprocess.run(
        [sys.executable, "-S", "-c", code],  # without site-packages
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert bare.stdout == "PySpark is not installed: pip install 'safekeeper[spark]'\n"
