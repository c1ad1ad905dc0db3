"""Full disks, read-only disks, folders that are none: one clear line, and nothing that was there is lost.

Each case runs in a mount namespace of its own, with a small file system that the kernel really fills up or refuses to
write, so it works for root and for everybody else.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap

import pytest

from safekeeper import BadUrl, CheckpointId, SafeKeeper

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
    assert (kind, kept, new) == ("BadUrl", "kept", None)
    assert "read-only: mount it writable or choose another folder" in message


IMPOSSIBLE = {
    "through a file": ("{folder}/file/store", "something on the path is no folder"),
    "a file": ("{folder}/file", "something on the path is no folder"),
    "through a device": ("/dev/null/store", "something on the path is no folder"),
    "links in a circle": ("{folder}/circle/store", "the links on the path lead to themselves"),
    "a long name": ("{folder}/" + "x" * 300, "the path is too long"),
    "a long path": ("{folder}" + "/x" * 3000, "the path is too long"),
}


@pytest.mark.parametrize(("path", "says"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
@pytest.mark.parametrize("scheme", STORES)
def test_a_path_that_can_never_work_is_refused_when_it_is_opened(tmp_path, scheme, path, says):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(BadUrl, match=says) as caught:
        SafeKeeper(f"{scheme}://{path.format(folder=tmp_path)}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", STORES)
@pytest.mark.parametrize("path", ["/proc/store", "{folder}/link", "{folder}/link/store"])
def test_a_save_where_nothing_can_be_made_fails_at_once_and_is_not_tried_again(tmp_path, scheme, path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with SafeKeeper(f"{scheme}://{path.format(folder=tmp_path)}") as keeper:
        assert list(keeper.recover("g")) == []
        with pytest.raises(BadUrl, match=r"permission denied|something on the path is no folder"):
            keeper.save(CheckpointId("g", b"a"), 1).result()
    assert keeper.metrics().retries == 0


FORBIDDEN = """
import json, os, sys, safekeeper
from safekeeper import Batch, CheckpointId
said, (scheme, folder) = [], sys.argv[1:]
with safekeeper.open(f"{scheme}://{folder}/open/warm-up") as store:
    store.write(Batch({CheckpointId("g", b"a"): b""}))  # imports what it needs, which this user perhaps may not read
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for path in ("closed/store", "visible/store"):
    try:
        with safekeeper.open(f"{scheme}://{folder}/{path}") as store:
            said.append(list(store.groups()))
            store.write(Batch({CheckpointId("g", b"a"): b""}))
    except safekeeper.SafekeeperError as error:
        said += [type(error).__name__, str(error)]
print(json.dumps(said))
"""


@pytest.mark.parametrize("scheme", STORES)
def test_a_folder_that_this_user_may_not_use_is_refused(scheme):
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, which is for its user only
        os.chmod(folder, 0o755)
        for name, mode in (("open", 0o777), ("closed", 0), ("visible", 0o555)):
            os.mkdir(f"{folder}/{name}", mode)
            os.chmod(f"{folder}/{name}", mode)
        command = [sys.executable, "-c", FORBIDDEN, scheme, folder]
        done = subprocess.run(
            command, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
        )
    closed, says_closed, groups, visible, says_visible = json.loads(done.stdout)
    assert (closed, groups, visible) == ("BadUrl", [], "BadUrl")
    assert f"{folder}/closed: permission denied" in says_closed.replace("closed/store", "closed")
    assert "permission denied: let this user into the folder" in says_visible


LATER = """
import json, subprocess, sys, safekeeper
from safekeeper import Batch, CheckpointId
scheme, disk = sys.argv[1:]
with safekeeper.open(f"{scheme}://{disk}/store") as store:
    store.write(Batch({CheckpointId("g", b"a"): b"1"}))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        store.write(Batch({CheckpointId("g", b"a"): b"2"}))
    except safekeeper.SafekeeperError as error:
        print(type(error).__name__)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    store.write(Batch({CheckpointId("g", b"a"): b"3"}))
"""


@pytest.mark.parametrize("scheme", ["file", "objects+file"])  # the others have files open, and cannot be remounted
def test_a_store_whose_disk_becomes_read_only_can_be_tried_again(tmp_path, scheme):
    script = f'mount -t tmpfs tmpfs {tmp_path} && {sys.executable} -c "$LATER" {scheme} {tmp_path}'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": ":".join(sys.path), "LATER": LATER},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "Unavailable\n"
