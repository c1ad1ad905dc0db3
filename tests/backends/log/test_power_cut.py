"""A power cut between any two operations on files: what was acknowledged is there, and nothing passes for corrupt."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from safekeeper import Batch, CheckpointId, Columns, Unavailable
from safekeeper.backends.log import writer_status
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.background import Background
from safekeeper.backends.log.options import LogOptions

from .killing import kill, open_as_another_process
from .power import Disk, QuickFiles, RecordingFiles, restore

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
OPTIONS = LogOptions(segment=4096)
HOWS = ("lost", "kept", "names", "writes", *["random"] * 20) if LONG else ("lost", "kept", "random")


def scenario(root: Path, files: RecordingFiles, seed: int, steps: int, options: LogOptions) -> list[dict]:
    """Write for a while, with compaction and a restart; the state of the store after each step, the first one empty."""
    random = Random(seed)
    states: list[dict[CheckpointId, bytes]] = [{}]
    for turn in range(2):
        with LogBackend(root, options, files) as store:
            for step in range(steps):
                state = dict(states[-1])
                change = random_change(random, state)
                states.append(state)
                files.note(f"begin {len(states) - 1}")
                change(store)
                for path in root.glob("*/head"):
                    files.note_content(path)
                files.note(f"done {len(states) - 1}")
                if turn == 0 and step == steps // 2:
                    store.compact()
            files.note("closing")
        files.note("closed")
    return states


def scenario_of_two(root: Path, files: RecordingFiles, seed: int, steps: int, options: LogOptions) -> list[dict]:
    """The same with two writers in turns, each compacting now and then, and one of them killed half-way."""
    random = Random(seed)
    states: list[dict[CheckpointId, bytes]] = [{}]
    handles = [open_as_another_process(root, options, files) for _ in range(2)]
    for step in range(steps):
        if step == steps // 2:
            files.note("killed")
            kill(handles[0])
            handles[0] = open_as_another_process(root, options, files)
        store = random.choice(handles)
        state = dict(states[-1])
        change = random_change(random, state)
        states.append(state)
        files.note(f"begin {len(states) - 1}")
        change(store)
        for path in root.glob("*/head"):
            files.note_content(path)
        files.note(f"done {len(states) - 1}")
        if random.random() < 0.3:
            random.choice(handles).compact()
    for store in handles:
        store.close()
    return states


def random_change(random: Random, state: dict[CheckpointId, bytes]) -> Callable[[LogBackend], object]:
    if random.random() >= 0.25:
        batch = random_batch(random, state)
        return lambda store: store.write(batch)
    id, value = CheckpointId("created", b"%d" % random.randrange(4)), random.randbytes(random.choice((16, 500)))
    if id in state and random.random() < 0.5:
        del state[id]
        deletion = Batch()
        deletion.delete(id)
        return lambda store: store.write(deletion)
    expected = state.setdefault(id, value) is value

    def create(store: LogBackend) -> None:
        assert store.create(id, value, value[:16]) == expected

    return create


def random_batch(random: Random, state: dict[CheckpointId, bytes]) -> Batch:
    if random.random() < 0.15:
        keys = [b"%d" % random.randrange(12) for _ in range(5)]
        values = [random.randbytes(random.randrange(200)) for _ in keys]
        state.update((CheckpointId("columns", key), value) for key, value in zip(keys, values, strict=True))
        return Batch.of_columns(Columns.of("columns", keys, values))
    batch = Batch()
    for _ in range(random.randint(1, 3)):
        id = CheckpointId("group", b"%d" % random.randrange(12))
        if random.random() < 0.3:
            batch.delete(id)
            state.pop(id, None)
        else:
            value = random.randbytes(random.choice((0, 10, 300, 1500)))
            batch.put(id, value)
            state[id] = value
    return batch


def everything(store: LogBackend) -> dict[CheckpointId, bytes | None]:
    ids = [CheckpointId(group, key) for group in store.groups() for key in store.keys(group)]
    found = dict(zip(ids, store.read(ids), strict=True))
    for group in store.groups():
        scanned = {CheckpointId(group, key): value for page in store.scan(group) for key, value in page}
        assert scanned == {id: value for id, value in found.items() if id.group == group}
    for id, value in found.items():
        if id.group == "created":
            assert not store.create(id, b"", bytes(16))
            assert store.create(id, b"", value[:16]), "the value is there, but not its token"
    return found


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(12 if LONG else 2))
@pytest.mark.parametrize("play", (scenario, scenario_of_two), ids=("one writer", "two writers"))
def test_a_power_cut_between_any_two_operations_loses_nothing_that_was_acknowledged(tmp_path, monkeypatch, seed, play):
    monkeypatch.setattr(Background, "due", lambda self: False)  # its passes would come at other moments each time
    source, files = tmp_path / "source", RecordingFiles()
    states = play(source, files, seed, steps=24 if LONG else 12, options=OPTIONS)
    monkeypatch.setattr(writer_status, "this_boot", lambda: (1, 1))  # statuses may be old from now on
    disk, done, begun = Disk(), 0, 0
    for number, operation in enumerate(files.operations):
        if operation.kind == "note":
            word, _, which = operation.name.partition(" ")
            begun = int(which) if word == "begin" else begun
            done = int(which) if word == "done" else done
            continue
        disk.do(operation)
        for variant, how in enumerate(HOWS):
            random = Random(f"{seed} {number} {variant}")
            restore(disk.after_a_power_cut(how, random), source, tmp_path / "cut")
            check_after_the_cut(tmp_path / "cut", states[done], states[begun], thorough=LONG or number % 4 == 0)
            shutil.rmtree(tmp_path / "cut")


def check_after_the_cut(root: Path, acknowledged: dict, begun: dict, thorough: bool) -> None:
    with LogBackend(root, OPTIONS, QuickFiles()) as store:
        seen = everything(store)
        assert seen in (acknowledged, begun), "neither the last acknowledged state nor the one begun after it"
        assert list(store.verify()) == []
    if not thorough:
        return
    for index in root.glob("*/*.index"):
        index.unlink()
    with LogBackend(root, OPTIONS, QuickFiles()) as store:
        assert everything(store) == seen, "the segments alone say something else than the index file"
        extra = CheckpointId("extra", b"key")
        store.write(Batch({extra: b"value"}))
        assert everything(store) == {**seen, extra: b"value"}
    with LogBackend(root, OPTIONS, QuickFiles()) as store:
        assert everything(store) == {**seen, extra: b"value"}


def test_what_a_killed_writer_left_in_memory_is_durable_before_the_next_one_builds_on_it(tmp_path):
    source, files = tmp_path / "source", RecordingFiles()
    id, later = CheckpointId("group", b"killed"), CheckpointId("group", b"later")
    options = LogOptions(sync="none", sync_interval=0.01)
    store = LogBackend(source, options, files)
    store.write(Batch({id: b"value"}))
    while not any(operation.kind == "write" and b"killed" in operation.data for operation in files.operations):
        time.sleep(0.01)
    kill(store)
    with LogBackend(source, LogOptions(), files) as store:
        assert store.read([id]) == [b"value"]
        store.write(Batch({later: b"value"}))
        disk = Disk()
        for operation in files.operations:
            disk.do(operation)
    restore(disk.after_a_power_cut("lost", Random(0)), source, tmp_path / "cut")
    with LogBackend(tmp_path / "cut") as store:
        assert store.read([id, later]) == [b"value", b"value"]


@pytest.mark.parametrize("size", (10, 3000), ids=("appended", "in a new segment"))
@pytest.mark.parametrize("how", ("lost", "kept", "random"))
def test_what_a_failed_sync_left_in_memory_is_written_again_before_it_is_believed(tmp_path, monkeypatch, how, size):
    """A sync of a file that another process has changed proves nothing: its pages count as clean after a failure."""
    source, files = tmp_path / "source", RecordingFiles()
    before, failed, later = (CheckpointId("group", name) for name in (b"before", b"failed", b"later"))
    store = LogBackend(source, OPTIONS, files)
    store.write(Batch({before: b"value" + bytes(2000)}))
    if size == 3000:
        store.write(Batch({later: bytes(3000)}))  # so that the next one is not the first in its segment
    files.failing = True
    with pytest.raises(Unavailable):
        store.write(Batch({failed: b"value"}))
    kill(store)
    files.failing = False
    with LogBackend(source, OPTIONS, files) as store:
        store.write(Batch({later: b"value"}))
        seen = store.read([before, failed, later])
        assert seen == [b"value" + bytes(2000), b"value", b"value"], "a whole block is found in memory"
        disk = Disk()
        for operation in files.operations:
            disk.do(operation)
    for turn in range(10 if how == "random" else 1):
        cut = tmp_path / f"cut {turn}"
        restore(disk.after_a_power_cut(how, Random(turn)), source, cut)
        monkeypatch.setattr(writer_status, "this_boot", lambda: (1, 1))
        with LogBackend(cut) as store:
            assert store.read([before, failed, later]) == seen, "what was read is gone"
            assert list(store.verify()) == []


def test_a_folder_whose_tail_cannot_be_written_again_is_not_taken_over(tmp_path):
    source, files = tmp_path / "source", RecordingFiles()
    before, failed = (CheckpointId("group", name) for name in (b"before", b"failed"))
    store = LogBackend(source, OPTIONS, files)
    store.write(Batch({before: b"value"}))
    files.failing = True
    with pytest.raises(Unavailable):
        store.write(Batch({failed: b"value"}))
    kill(store)
    with LogBackend(source, OPTIONS, files) as store:
        for _ in range(3):
            with pytest.raises(Unavailable):
                store.write(Batch({failed: b"again"}))
        files.failing = False
        store.write(Batch({failed: b"at last"}))
        assert store.read([before, failed]) == [b"value", b"at last"]


def test_only_what_was_not_proved_to_be_durable_is_written_again(tmp_path):
    source, files = tmp_path / "source", RecordingFiles()
    store = LogBackend(source, LogOptions(), files)
    for turn in range(100):
        store.write(Batch({CheckpointId("group", b"%d" % turn): bytes(1000)}))
    kill(store)
    files.operations.clear()
    with LogBackend(source, LogOptions(), files) as store:
        store.write(Batch({CheckpointId("group", b"new"): b""}))
    assert sum(len(operation.data) for operation in files.operations if operation.kind == "write") < 80_000 + 70_000
