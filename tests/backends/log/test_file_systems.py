"""The file systems that `docs/format.md` names: two processes on one root, each seeing the other, one killed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
IMAGE = (
    "truncate -s 400M {folder}/image && mkfs.KIND -q {folder}/image && mount -o loop {folder}/image {folder}/mounted"
)
MOUNTS = {
    "overlay": "mkdir {folder}/lower {folder}/upper {folder}/work && mount -t overlay overlay"
    " -o lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work {folder}/mounted",
    "tmpfs": "mount -t tmpfs none {folder}/mounted",
    **{kind: IMAGE.replace("KIND", kind) for kind in ("ext4", "xfs", "btrfs")},
}

PROGRAM = """
import sys
from safekeeper import Batch, CheckpointId
from safekeeper.backends.shared.local_files import file_system_type
from safekeeper.backends.log.backend import LogBackend
from safekeeper.testing.peer import Peer
from pathlib import Path

root = Path(sys.argv[1]) / "store"
a, b = CheckpointId("group", b"a"), CheckpointId("group", b"b")
with LogBackend(root) as store, Peer(f"log://{root}") as peer, Peer(f"log://{root}") as third:
    print(file_system_type(root))
    for turn in range(50):
        value = b"%d" % turn
        (store, peer)[turn % 2].write(Batch({a: value}))
        assert [handle.read([a]) for handle in (store, peer, third)] == [[value]] * 3, turn
        if turn == 20:
            third.write(Batch({b: b"third"}))
            third._process.kill()
            third._process.wait()
            third = Peer(f"log://{root}")
        if turn % 15 == 0:
            store.compact()
    third.write(Batch({a: b"last"}))
    third.close()
    assert [handle.read([a, b]) for handle in (store, peer)] == [[b"last", b"third"]] * 2
    assert list(store.verify()) == []
print("fine", len(list(root.glob("writer-*"))))
"""


FULL = """
import os, sys
from pathlib import Path
from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.backends.log.backend import LogBackend

def fill(path):
    with open(path, "wb", buffering=0) as file:
        for size in (65536, 512):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass

root, a = Path(sys.argv[1]), CheckpointId("group", b"a")
fill(root / "filler")
with LogBackend(root / "store") as store:
    for turn in range(2):
        refused = 0
        while refused < 3:
            try:
                store.write(Batch({a: b"on a full disk"}))
            except Unavailable as error:
                assert "is full" in str(error), error
                refused += 1
        (root / "filler").unlink()
        store.write(Batch({a: b"%d" % turn}))
        assert store.read([a]) == [b"%d" % turn]
        fill(root / "filler")
    (root / "filler").unlink()
    print("fine", len(list((root / "store").glob("writer-*"))))
"""


def try_on(folder: Path, mount: str | None, program: str = PROGRAM) -> list[str]:
    """Run a program on a file system that is mounted for it alone; what it says."""
    (folder / "mounted").mkdir()
    script = folder / "program.py"
    script.write_text(program)
    command = f"{sys.executable} {script} {folder}/mounted"
    if mount is not None:
        command = f"({mount.format(folder=folder)}) >&2 || exit 77; {command}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    alone = [] if mount is None else ["unshare", "--mount"]
    ran = subprocess.run([*alone, "sh", "-c", command], env=environment, capture_output=True, text=True, check=False)
    if mount is not None and ran.returncode in (1, 77) and "fine" not in ran.stdout and "Traceback" not in ran.stderr:
        pytest.skip(f"cannot be mounted here: {ran.stderr.strip().splitlines()[-1:]}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_several_processes_share_a_log_on_the_file_system_of_the_tests(tmp_path):
    assert try_on(tmp_path, None)[1:] == ["fine", "3"]


@pytest.mark.crash
@pytest.mark.parametrize("kind", MOUNTS if LONG else ["overlay"])
def test_several_processes_share_a_log_on(kind, tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) to mount with")
    assert try_on(tmp_path, MOUNTS[kind]) == [kind, "fine", "3"]


@pytest.mark.parametrize(
    "mount",
    (
        "mount -t tmpfs -o size=4M none {folder}/mounted",
        IMAGE.replace("KIND", "ext4").replace("400M", "20M"),
    ),
    ids=("tmpfs", "ext4"),
)
def test_a_file_system_that_is_full_is_an_error_from_the_first_claim_on(mount, tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1) to mount with")
    assert try_on(tmp_path, mount, FULL) == ["fine", "1"]
