"""Which file systems the backends with local files take. A FUSE that answers little stands for the remote ones."""

import os
import shutil
import subprocess
import sys

import pytest

import safekeeper
from safekeeper import BadUrl
from safekeeper.backends.shared.local_files import file_system_type

LOCAL_FILES = "safekeeper.backends.shared.local_files"
SCHEMES = ("log", "file", "lmdb")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "virtiofs", "lustre"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_remote_file_system_is_refused(monkeypatch, tmp_path, scheme, kind):
    monkeypatch.setattr(f"{LOCAL_FILES}.file_system_type", lambda path: kind)
    with pytest.raises(
        BadUrl, match=f"is on {kind}: choose a folder on a local file system, or a store that is on the"
    ):
        safekeeper.open(f"{scheme}://{tmp_path}/store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse.fuse-overlayfs", "fuseblk", ""])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_local_file_system_is_not_refused(monkeypatch, tmp_path, scheme, kind):
    monkeypatch.setattr(f"{LOCAL_FILES}.file_system_type", lambda path: kind)
    safekeeper.open(f"{scheme}://{tmp_path}/store").close()


@pytest.mark.parametrize(("kind", "taken"), [("gfs2", True), ("lustre", True), ("fuse.x", True), ("nfs4", False)])
def test_a_log_for_several_hosts_is_taken_where_it_could_work(monkeypatch, tmp_path, kind, taken):
    monkeypatch.setattr(f"{LOCAL_FILES}.file_system_type", lambda path: kind)
    url = f"log://{tmp_path}/store?scope=network"
    if taken:
        safekeeper.open(url).close()
    else:
        with pytest.raises(BadUrl, match=f"is on {kind}"):
            safekeeper.open(url)
    with pytest.raises(BadUrl) as caught:
        safekeeper.open(f"log://{tmp_path}/store")
    assert ("or say ?scope=network" in str(caught.value)) == taken


def test_the_type_of_a_file_system_is_that_of_the_nearest_folder(tmp_path):
    assert file_system_type(tmp_path / "not" / "there") == file_system_type(tmp_path) != ""
    assert file_system_type(tmp_path / "\udcff") == file_system_type(tmp_path)
    assert [*map(file_system_type, map(tmp_path.joinpath, ("/proc", "/dev/shm/x")))] == ["proc", "tmpfs"]


FUSE = """
import ctypes, errno, os, stat, struct, sys, threading
import safekeeper

folder = sys.argv[1]
fuse = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
settings = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"elsewhere", folder.encode(), b"fuse.elsewhere", 0, settings):
    print("cannot be mounted:", os.strerror(ctypes.get_errno()))
    sys.exit(77)

INIT, GETATTR, LOOKUP, FORGET = 26, 3, 1, 2
FIRST = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
ROOT = struct.pack("<QII6Q10I", 0, 0, 0, 1, *[0] * 5, *[0] * 3, stat.S_IFDIR | 0o755, 1, 0, 0, 0, 4096, 0)

def serve():
    while True:
        _, operation, number = struct.unpack_from("<IIQ", os.read(fuse, 1 << 20))
        if operation == FORGET:
            continue
        answer = {INIT: FIRST, GETATTR: ROOT}.get(operation, b"")
        error = 0 if answer else errno.ENOENT if operation == LOOKUP else errno.ENOSYS
        os.write(fuse, struct.pack("<IiQ", 16 + len(answer), -error, number) + answer)

threading.Thread(target=serve, daemon=True).start()
for url in (*sys.argv[2:], f"log://{folder}/store?scope=network"):
    try:
        with safekeeper.open(url) as store:
            print(*store.groups(), "opened")
    except safekeeper.BadUrl as error:
        print(error)
sys.stdout.flush()
os._exit(0)
"""


def test_a_mounted_file_system_that_is_not_local_is_refused(tmp_path):
    if shutil.which("unshare") is None or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("there is no unshare(1) to mount with, or no /dev/fuse")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", FUSE, tmp_path]
        + [f"{scheme}://{tmp_path}/store" for scheme in SCHEMES],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr
    *refused, network = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in refused] == [f"{tmp_path}/store is on fuse.elsewhere"] * len(SCHEMES)
    assert network == "opened"
