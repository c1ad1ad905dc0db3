"""A jar's symbols are looked up in other jars: what is missing is named, and a jar that links has nothing missing."""

from __future__ import annotations

import subprocess
import zipfile

import pytest

from safekeeper.dev.linkage import missing_symbols
from safekeeper.spark.build import find_tool

LIBRARY = """package lib;
public interface Library {
  String name();
  static int twice(int number, long other) { return 2 * number; }
  default int size() { return 1; }
  final class Box extends java.util.ArrayList<String> {
    public int width;
    public Box(int width) { this.width = width; }
  }
}
"""
USER = """package user;
import lib.Library;
public final class User implements Library {
  public String name() { return "user" + size() + Library.twice(1, 2) + new Library.Box(3).width; }
  public int count() { Library.Box[] boxes = {new Library.Box(1)}; return boxes.clone()[0].size(); }
}
"""


@pytest.fixture
def jar(tmp_path):
    """Compiles a source into a jar, against another jar if one is named."""

    def jar(name, source, against=None):
        folder = tmp_path / name
        folder.mkdir()
        file = folder / ("Library.java" if source.startswith("package lib") else "User.java")
        file.write_text(source)
        command = [find_tool("javac"), "--release", "17", "-d", str(folder / "classes"), str(file)]
        subprocess.run([*command, *(["-cp", str(against)] if against else [])], check=True, timeout=300)
        with zipfile.ZipFile(tmp_path / f"{name}.jar", "w") as archive:
            for path in (folder / "classes").rglob("*.class"):
                archive.write(path, path.relative_to(folder / "classes"))
        return tmp_path / f"{name}.jar"

    return jar


@pytest.mark.parametrize(
    ("before", "after", "says"),
    (
        ("int number, long other", "int number, int other", ["lib.Library twice (IJ)I"]),
        ("default int size() { return 1; }", "", ["user.User size ()I"]),
        ("public int width;", "public long width;", ["lib.Library$Box width I"]),
        ("Box(int width)", "Box(short width)", ["lib.Library$Box <init> (I)V"]),
        ("String name();", "String name(); void other();", ["user.User leaves open other ()V of lib.Library"]),
        ("Box", "Bag", [f"lib.Library$Box{use}" for use in ("", " <init> (I)V", " size ()I", " width I")]),
    ),
    ids=("a method", "an inherited one", "a field", "a constructor", "a method to implement", "a class"),
)
def test_what_another_release_lacks_is_named(jar, before, after, says):
    library = jar("library", LIBRARY)
    user = jar("user", USER, library)
    assert missing_symbols(user, [library]) == []
    assert missing_symbols(user, [jar("other", LIBRARY.replace(before, after))]) == says
