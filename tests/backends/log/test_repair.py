"""Everything that is intact in a damaged store is found, and everything else is said to be lost."""

import json
from pathlib import Path

import pytest

from safekeeper import Batch
from safekeeper.backend import Damage, Intact
from safekeeper.backends.log.backend import LogBackend
from safekeeper.testing.peer import Peer

from .command import run
from .damage import LONG, OPTIONS, Values, id_of, make, some


@pytest.fixture
def damaged(tmp_path) -> tuple[Path, Values]:
    """A store with records, columns, tombstones, moved records and a tail, of two writers; what it holds."""
    root = tmp_path / "store"
    states = make(tmp_path / "closed", root)
    with Peer(f"log://{root}?segment=4K") as one, Peer(f"log://{root}?segment=4K") as other:
        one.write(Batch({id_of("one"): b"1" * 40}))
        other.write(Batch({id_of("other"): b"2" * 40, id_of("a"): b"theirs"}))
    truth = {**states[-1], id_of("one"): b"1" * 40, id_of("other"): b"2" * 40, id_of("a"): b"theirs"}
    assert len(list(root.glob("writer-*"))) == 2
    return root, {id: value for id, value in truth.items() if value is not None}


def salvage(root: Path) -> tuple[Values, list[Damage]]:
    intact, lost = {}, []
    with LogBackend(root, OPTIONS) as store:
        for found in store.salvage():
            if isinstance(found, Intact):
                intact[found.id] = found.value
            else:
                lost.append(found)
    return intact, lost


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_undamaged_store_is_salvaged_whole(damaged):
    root, truth = damaged
    assert salvage(root) == (truth, [])


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_whatever_byte_is_flipped_all_else_is_found_and_what_is_lost_is_said(damaged):
    root, truth = damaged
    for path in root.glob("*/*.segment"):
        data = bytearray(path.read_bytes())
        for offset in some(range(min(len(data), 3000)))[:: 1 if LONG else 3]:
            data[offset] ^= 1 << offset % 8
            path.write_bytes(data)
            before = content(root)
            intact, lost = salvage(root)
            assert content(root) == before
            check(intact, lost, truth, f"byte {offset} of {path}")
            data[offset] ^= 1 << offset % 8
        path.write_bytes(data)


def check(intact: Values, lost: list[Damage], truth: Values, where: str) -> None:
    """One flipped byte costs one block at most; what is known to be lost is not there, not even as an older value."""
    wrong = {id for id in truth if intact.get(id) != truth[id]}
    assert bool(wrong) <= bool(lost), where
    assert len(wrong) <= 3, where
    known = {damage.id for damage in lost if damage.id}
    assert known <= wrong, f"{where}: said to be lost, and is not"
    assert not known & {*intact}, f"{where}: said to be lost, and has another value"
    if len(known) == len(lost):
        assert known == wrong, where


def test_without_a_manifest_everything_is_found_and_the_doubt_is_said(damaged):
    root, truth = damaged
    for manifest in root.glob("*/manifest"):
        manifest.unlink()
    intact, lost = salvage(root)
    assert intact == truth
    assert [("deleted lately may be back" in damage.problem) for damage in lost] == [True, True]


def test_the_command_copies_what_is_intact_and_says_what_is_not(damaged, tmp_path):
    root, truth = damaged
    (path,) = (path for path in root.glob("*/*.segment") if b"1" * 40 in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"1" * 40, b"1" * 39 + b"x"))
    source, target = f"log://{root}", f"file://{tmp_path}/new"
    assert run("verify", source).returncode == 1
    ran = run("repair", source, target)
    assert ran.returncode == 1
    assert "the value is damaged (group/one is lost)" in ran.stdout
    assert f"{len(truth) - 1} ids copied" in ran.stderr
    again = run("repair", source, target)
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)
    fresh = run("repair", target, f"log://{tmp_path}/newest", "--json")  # a backend that has no salvage of its own
    assert json.loads(fresh.stdout) == {"copied": len(truth) - 1, "lost": []}
    with LogBackend(tmp_path / "newest") as store:
        expected = {id: value for id, value in truth.items() if id != id_of("one")}
        assert {id: store.read([id])[0] for id in expected} == expected
        assert list(store.verify()) == []
