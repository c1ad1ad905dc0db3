"""One word for one thing: a class name stands for one thing in the whole tree, and the glossary's words are used."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = [*(ROOT / "backends").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
PYTHON += [path for path in (ROOT / "safekeeper").rglob("*.py") if not {"backends", "bench"} & {*path.parts[-3:-1]}]
JAVA = [*(ROOT / "safekeeper").rglob("*.java"), *(ROOT / "bench").rglob("*.java")]
TEXTS = [*PYTHON, *JAVA, *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.py"), ROOT / "README.md"]


def test_a_class_name_stands_for_one_thing_in_the_whole_tree():
    places = defaultdict(set)
    for path in PYTHON:
        for name in re.findall(r"^ *class (?!Test)(\w+)[(:\[]", path.read_text(), re.MULTILINE):
            places[name].add(path.relative_to(ROOT).as_posix())
    for path in JAVA:
        for name in re.findall(r"^[\w ]*\b(?:class|interface|enum|record) (\w+)[ <({]", path.read_text(), re.MULTILINE):
            # The same class for each minor version of Spark.
            shim = re.sub(r"/shim/(?:since-|until-)?[\d.]+/", "/shim/", path.as_posix())
            places[name].add(Path(shim).relative_to(ROOT).as_posix())
    assert len(places) > 200
    assert {name: sorted(files) for name, files in places.items() if len(files) > 1} == {}


def test_words_that_the_glossary_replaced_are_gone():
    old = re.compile(r"(?<![\"`])\bgraves?\b|The contrary\.", re.IGNORECASE)  # "graves" is a field in a file
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in TEXTS
        if path.name != Path(__file__).name
        for match in old.finditer(path.read_text())
    }
    assert found == set()
