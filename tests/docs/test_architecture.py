"""`docs/architecture.md` says what is there: its tree is the tree, and its walks name what exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
REFERENCES = sorted(set(re.findall(r"`([\w/.-]+\.(?:py|java)):([\w.]+)`", PAGE)))
TREE = PAGE.split("## The tree")[1].split("```")[1]
BRANCH = re.compile(r"^ {0,2}([\w/]+)/(?= )")
ENTRY = re.compile(r"(?<=\s)(\w+\.py|\w+/)(?=\s)")
IGNORED = {"__init__.py", "__pycache__", "py.typed"}


def defined_in_python(file):
    """The names of all functions, classes and methods of a module, those of methods with their class."""
    names = set()

    def look(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(prefix + child.name)
                look(child, f"{prefix}{child.name}.")

    look(ast.parse(file.read_text()), "")
    return names


def defined_in_java(file):
    """The names of what is declared in a file: something and a name, then an opening bracket or brace."""
    return set(re.findall(r"^ *(?:[\w<>\[\],.]+ )+(\w+)[<>\w ]*[({]", file.read_text(), re.MULTILINE))


@pytest.mark.parametrize(("file", "name"), REFERENCES, ids=[f"{file}:{name}" for file, name in REFERENCES])
def test_the_walks_name_files_and_functions_that_exist(file, name):
    path = ROOT / file
    assert path.is_file()
    assert name in (defined_in_python(path) if path.suffix == ".py" else defined_in_java(path))


def test_there_are_four_walks_and_each_names_its_steps():
    walks = PAGE.split("## Four walks")[1].split("\n### ")[1:]
    assert len(walks) == 4
    assert all(len(re.findall(r"`[\w/.-]+\.(?:py|java):", walk)) >= 5 for walk in walks)


def branches():
    """The folders of the tree, each with what the page lists in it: nothing where it only says what is there."""
    found, top, folder = {}, "", ""
    for line in TREE.strip("\n").splitlines():
        if branch := BRANCH.match(line):
            top = top if line.startswith(" ") else branch[1]
            folder = f"{top}/{branch[1]}" if line.startswith(" ") else top
        found.setdefault(folder, set()).update(entry.rstrip("/") for entry in ENTRY.findall(f"{line[17:]} "))
    return found


def test_the_tree_is_the_tree():
    page = branches()
    assert {
        "safekeeper",
        "safekeeper/keeper",
        "backends",
        "backends/hdfs/peace",
        "bench",
        "bench/studies",
    } <= page.keys()
    for folder, listed in page.items():
        assert (ROOT / folder).is_dir()
        if listed:
            listed |= {other.rpartition("/")[2] for other in page if other.rpartition("/")[0] == folder}
            there = {path.name for path in (ROOT / folder).iterdir() if not path.is_symlink()} - IGNORED
            assert listed == {name for name in there if name.endswith(".py") or (ROOT / folder / name).is_dir()}, folder


PAGES = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
FILES = sorted({(page.name, name) for page in PAGES for name in re.findall(r"`([\w.-]+/[\w./-]+)`", page.read_text())})
TOPS = ("safekeeper/", "backends/", "bench/", "tests/", "docs/", ".ci/")


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, name in FILES if name.startswith(TOPS)])
def test_the_docs_name_files_that_exist(page, name):
    assert (ROOT / name).exists()
