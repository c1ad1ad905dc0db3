"""One damaged folder among those of several writers: an error that names the place, at once, whichever folder it is."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Corruption
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.writer_folder import WriterFolder
from safekeeper.testing.peer import PATIENCE, Peer

from .inside import compact
from .killing import open_as_another_process
from .layout import layout_of
from .power import QuickFiles

OPTIONS = LogOptions(segment=4096)
FOLDERS = ("first", "second", "middle", "last")

pytestmark = pytest.mark.timeout(PATIENCE)


def id_of(name: str) -> CheckpointId:
    return CheckpointId("group", name.encode())


def make(root: Path) -> list[Path]:
    """A root with a folder for each of several writers that were closed; the folders."""
    handles = [open_as_another_process(root, OPTIONS, QuickFiles()) for _ in FOLDERS]
    for handle, name in zip(handles, FOLDERS, strict=True):
        for turn in range(3):
            handle.write(Batch({id_of(name): b"%d" % turn, id_of("shared"): name.encode()}))
    for handle in handles:
        handle.close()
    return sorted(root.glob("writer-*"))


def flip(path: Path, offset: int) -> Path:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    return path


def in_a_segment(folder: Path) -> Path:
    layout = next(layout for layout in layout_of(folder) if layout.blocks)
    return flip(layout.path, layout.areas[1].start + 20)


def of_a_segment(folder: Path) -> Path:
    return flip(layout_of(folder)[-1].path, 4)


def missing_segment(folder: Path) -> Path:
    path = layout_of(folder)[-1].path
    path.unlink()
    return path


def in_the_manifest(folder: Path) -> Path:
    return flip(folder / "manifest", 60)


def missing_manifest(folder: Path) -> Path:
    (folder / "manifest").unlink()
    return folder / "manifest"


def broken_link(folder: Path) -> Path:
    """A segment that leads nowhere, beside a manifest that is missing."""
    (folder / "manifest").unlink()
    (folder / "00000099.segment").symlink_to(folder / "nowhere")
    return folder


DAMAGE: dict[str, Callable[[Path], Path]] = {
    "a bit in a block": in_a_segment,
    "a bit in the head of a segment": of_a_segment,
    "a missing segment": missing_segment,
    "a bit in the manifest": in_the_manifest,
    "a missing manifest": missing_manifest,
}
CALLS: dict[str, Callable[[LogBackend], object]] = {
    "read": lambda store: store.read([id_of("shared")]),
    "keys": lambda store: list(store.keys("group")),
    "groups": lambda store: list(store.groups()),
    "stats": lambda store: store.stats(),
    "compact": lambda store: store.compact(),
    "write": lambda store: store.write(Batch({id_of("new"): b""})),
}


@pytest.mark.parametrize("number", range(len(FOLDERS)), ids=FOLDERS)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_in_any_folder_is_an_error_that_names_the_place_at_once(tmp_path, damage, number):
    path = damage(make(tmp_path / "store")[number])
    for call in CALLS.values():
        for _ in range(2):
            with LogBackend(tmp_path / "store", OPTIONS, QuickFiles()) as store:
                for _ in range(2):
                    with pytest.raises(Corruption, match=f"{path}: offset"):
                        call(store)


@pytest.mark.parametrize("number", range(len(FOLDERS)), ids=FOLDERS)
def test_a_flipped_bit_in_a_head_changes_no_answer_whichever_folder_it_is_of(tmp_path, number):
    folder = make(tmp_path / "store")[number]
    for offset in range(0, (folder / "head").stat().st_size, 5):
        flip(folder / "head", offset)
        with LogBackend(tmp_path / "store", OPTIONS, QuickFiles()) as store:
            assert store.read([*map(id_of, FOLDERS), id_of("shared")]) == [b"2"] * len(FOLDERS) + [b"last"]
        flip(folder / "head", offset)


@pytest.mark.parametrize("name", ("writer-1", "writer-7"), ids=("before its own", "behind its own"))
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_writer_with_a_healthy_folder_goes_on_also_if_a_new_one_is_damaged(tmp_path, damage, name):
    root = tmp_path / "store"
    with Peer(f"log://{root}?segment=4K") as peer, LogBackend(root, OPTIONS, QuickFiles()) as store:
        peer.write(Batch({id_of("theirs"): b""}))
        store.write(Batch({id_of("ours"): b"0"}))
        damage(root / "writer-1")
        os.rename(root / "writer-1", root / name)
        peer._process.kill()
        peer._process.wait()
        forget_the_folders_of_others(store)
        for turn in range(1, 40):
            store.write(Batch({id_of("ours"): b"%d" % turn + bytes(400)}))
        for call in (CALLS["read"], CALLS["compact"]):
            with pytest.raises(Corruption, match=name):
                call(store)
        assert store._log.root.own.bytes_stored() < 3 * 4096, "its own rubbish stays"
        os.rename(root / name, tmp_path / "away")
        assert store.read([id_of("ours")]) == [b"39" + bytes(400)]


def forget_the_folders_of_others(store: LogBackend) -> None:
    """As if they were claimed just now."""
    root = store._log.root
    for folder in root.folders():
        if folder is not root.own:
            root.drop(folder)


def test_the_sequence_of_a_healthy_folder_counts_also_if_a_damaged_one_is_listed_before_it(tmp_path):
    """Both are new to the writer, and the status of the healthy one is from before a power cut."""
    root = tmp_path / "store"
    url = f"log://{root}"
    with LogBackend(root) as store, Peer(url) as damaged, Peer(url) as healthy:
        store.write(Batch({id_of("a"): b"first"}))
        damaged.write(Batch({id_of("b"): b""}))
        healthy.write(Batch({id_of("b"): b""}))
        old = (root / "writer-3" / "head").read_bytes()
        for turn in range(20):
            healthy.write(Batch({id_of("a"): b"%d" % turn}))
        damaged.close()
        healthy.close()
        (root / "writer-3" / "head").write_bytes(old)
        in_the_manifest(root / "writer-2")
        forget_the_folders_of_others(store)
        store.write(Batch({id_of("a"): b"last"}))
    os.rename(root / "writer-2", tmp_path / "away")
    with LogBackend(root) as store:
        assert store.read([id_of("a")]) == [b"last"]


@pytest.mark.parametrize("number", (0, 1), ids=("before", "behind"))
def test_a_damaged_folder_is_an_error_also_while_another_one_changes_all_the_time(tmp_path, number, monkeypatch):
    """Another manifest each time somebody looks; that is no reason to look again for what is wrong elsewhere."""
    root = tmp_path / "store"
    with Peer(f"log://{root}?segment=4K") as one, Peer(f"log://{root}?segment=4K") as other:
        one.write(Batch({id_of("a"): b""}))
        other.write(Batch({id_of("b"): b""}))
        live, dead = (one, other) if number else (other, one)
        dead.close()
        with LogBackend(root, OPTIONS) as store:
            assert store.read([id_of("a")]) == [b""]
            missing_manifest(root / f"writer-{2 if dead is other else 1}")
            looks = []
            refresh = WriterFolder.refresh

            def change_before(self: WriterFolder) -> None:
                if not looks or looks[-1] != self.path:
                    live.call(compact)
                looks.append(self.path)
                assert len(looks) < 20, "it looks again and again"
                refresh(self)

            monkeypatch.setattr(WriterFolder, "refresh", change_before)
            for folder in store._log.root.folders():
                folder._loaded = False
            with pytest.raises(Corruption, match="the manifest is missing"):
                store.read([id_of("a")])


def test_a_folder_that_can_not_be_looked_into_is_an_error_and_not_for_ever(tmp_path):
    folder = make(tmp_path / "store")[1]
    broken_link(folder)
    with LogBackend(tmp_path / "store", OPTIONS) as store, pytest.raises(Exception, match=str(folder)):
        store.read([id_of("shared")])


def test_a_read_beside_a_thread_that_has_loaded_but_not_yet_installed_what_is_new_looks_again(tmp_path, monkeypatch):
    """Another process compacts; one thread misses a file, while another one has the new manifest, but not its state."""
    root, url = tmp_path / "store", f"log://{tmp_path}/store?segment=4K"
    with Peer(url) as peer, LogBackend(root, OPTIONS) as store:
        peer.write(Batch({id_of("a"): b"value"}))
        for turn in range(8):
            peer.write(Batch({id_of(f"filler {turn}"): bytes(1000)}))
        assert len(list(store.keys("group"))) == 9
        batch = Batch()
        for turn in range(8):
            batch.delete(id_of(f"filler {turn}"))
        peer.write(batch)
        looking, installing, looked = threading.Event(), threading.Event(), threading.Event()
        pin, install, answers = WriterFolder.pin, WriterFolder.install, []

        def pause_before_pin(self, numbers):
            if threading.current_thread() is reader and not looking.is_set():
                looking.set()
                installing.wait(PATIENCE)
            return pin(self, numbers)

        def pause_before_install(self, state):
            installing.set()
            looked.wait(1.0)  # the reader may have to wait for us: then this is over by itself
            return install(self, state)

        def read() -> None:
            try:
                answers.append(store.read([id_of("a")]))
            except Exception as error:
                answers.append(error)
            looked.set()

        reader = threading.Thread(target=read)
        other = threading.Thread(target=lambda: store.read([id_of("a")]))
        monkeypatch.setattr(WriterFolder, "pin", pause_before_pin)
        reader.start()
        assert looking.wait(PATIENCE)
        peer.call(compact)
        monkeypatch.setattr(WriterFolder, "install", pause_before_install)
        other.start()
        reader.join(PATIENCE)
        other.join(PATIENCE)
        assert answers == [[b"value"]]
