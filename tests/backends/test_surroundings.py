"""Full disks, read-only disks, folders that are none: one clear line, and nothing that was there is lost.

Each case runs in a mount namespace of its own, with a small file system that the kernel really fills up or refuses to
write, so it works for root and for everybody else.
"""

import json
import subprocess
import sys
import textwrap

import pytest

CHILD = """
import json, sys, safekeeper
from safekeeper import Batch, CheckpointId
url, size = sys.argv[1], int(sys.argv[2])
a, b = CheckpointId("g", b"a"), CheckpointId("g", b"b")
said = []
with safekeeper.open(url) as store:
    try:
        store.write(Batch({a: bytes(size), b: bytes(size)}))
    except safekeeper.SafekeeperError as error:
        said = [type(error).__name__, str(error)]
    print(json.dumps([said, [v and v.decode() for v in store.read([a, b])]]))
"""

PREPARE = """
import sys, safekeeper
from safekeeper import Batch, CheckpointId
with safekeeper.open(sys.argv[1]) as store:
    store.write(Batch({CheckpointId("g", b"a"): b"kept"}))
"""

STORES = ["file", "log", "lmdb", "objects+file"]


def attempt(tmp_path, scheme, mount, size=10):
    disk = tmp_path / "disk"
    disk.mkdir()
    url = f"{scheme}://{disk}/store"
    script = textwrap.dedent(f"""
        set -e
        mount -t tmpfs -o size=2m tmpfs {disk}
        {sys.executable} -c "$PREPARE" {url}
        {mount.format(disk=disk)}
        {sys.executable} -c "$CHILD" {url} {size}
    """)
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": ":".join(sys.path),
            "PREPARE": PREPARE,
            "CHILD": CHILD,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("scheme", STORES)
def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path, scheme):
    (kind, message), (kept, new) = attempt(tmp_path, scheme, "true", size=4 << 20)
    assert (kind, kept, new) == ("Unavailable", "kept", None)
    assert "the file system is full: free some space and write again" in message


@pytest.mark.parametrize("scheme", STORES)
def test_a_read_only_disk_is_one_clear_line_and_can_be_read(tmp_path, scheme):
    (kind, message), (kept, new) = attempt(tmp_path, scheme, "mount -o remount,ro {disk}")
    assert (kind, kept, new) == ("Unavailable", "kept", None)
    assert "read-only: mount it writable or choose another folder" in message


@pytest.mark.parametrize("scheme", STORES)
def test_a_path_through_a_file_is_one_clear_line(tmp_path, scheme):
    import safekeeper

    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(safekeeper.Unavailable, match="something on the path is no folder"),
        safekeeper.open(f"{scheme}://{tmp_path}/file/store") as store,
    ):
        store.write(safekeeper.Batch({safekeeper.CheckpointId("g", b"a"): b""}))
