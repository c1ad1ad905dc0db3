"""File systems on loop devices, mounted where nobody else sees them.

Everything here runs in a process of `alone`, which has mounts and processes of its own: when it ends, however it ends,
its processes are killed, its file systems are unmounted and its loop devices are given back.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
R = TypeVar("R")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""What names this run of the kernel."""

SIZES = {"ext4": 32 << 20, "xfs": 320 << 20}
_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
_OPTIONS = {"ext4": (), "xfs": ("-o", "nouuid")}  # or xfs is not mounted while an old one, shut down, is in use
_SHUT_DOWN = 0x8004587D  # _IOR('X', 125, __u32), the same for ext4 and xfs
SHUT_DOWN_HOWS = {"all flushed": 0, "journal flushed": 1, "nothing flushed": 2}
"""What happens to what is in memory when a file system is shut down by force."""


def alone(function: Callable[Concatenate[Path, P], R], folder: Path, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run *function*, which must be importable by name, with mounts and processes of its own, and with a folder in
    memory as first argument. What it returns is returned, what it raises is raised here with its text."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems")
    if "CI" not in os.environ and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("this root may not mount file systems")
    (folder / "request").write_bytes(pickle.dumps((function, args, kwargs)))
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run([*command, sys.executable, "-P", "-m", __name__, str(folder)], env=environment, check=False)
    assert ran.returncode == 0, f"it ended with {ran.returncode}: its standard error says why"
    succeeded, answer = pickle.loads((folder / "answer").read_bytes())
    if not succeeded:
        raise AssertionError(answer)
    return answer  # type: ignore[no-any-return]


def _run_alone(folder: Path) -> None:
    function, args, kwargs = pickle.loads((folder / "request").read_bytes())
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "none", memory)
    try:
        answer = True, function(memory, *args, **kwargs)
    except BaseException:
        answer = False, traceback.format_exc()
    (folder / "answer").write_bytes(pickle.dumps(answer))


def run(*command: str | Path) -> str:
    """Run a command that must succeed; what it prints."""
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}: {ran.stderr.strip() or ran.returncode}"
    return ran.stdout


def make_image(kind: str, path: Path) -> Path:
    """A new file system in a file."""
    with path.open("wb") as file:
        file.truncate(SIZES[kind])
    run(*_MAKE[kind], path)
    return path


@contextmanager
def mounted(image: Path, folder: Path, kind: str = "ext4", content: bytes | bytearray | None = None) -> Iterator[Path]:
    """The file system in the file *image*, mounted on *folder*."""
    mount(image, folder, kind, content)
    try:
        yield folder
    finally:
        run("umount", folder)


def mount(image: Path, folder: Path, kind: str = "ext4", content: bytes | bytearray | None = None) -> None:
    """Mount the file system in the file *image* on *folder*, through a loop device of its own.

    If *content* is given, the device is compared with it first: one that was in use before may have a stale cache.
    """
    folder.mkdir(exist_ok=True)
    device = run("losetup", "--find", "--show", f"--direct-io={_direct_io(image)}", image).strip()
    try:
        run("blockdev", "--flushbufs", device)
        if content is not None:
            assert Path(device).read_bytes() == content, f"{device} does not have the content of its file"
        run("mount", "-t", kind, *_OPTIONS[kind], device, folder)
    finally:
        run("losetup", "--detach", device)  # as soon as it is not used any more


def _direct_io(image: Path) -> str:
    """Whether the file can be written without a cache in between."""
    try:
        os.close(os.open(image, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC))
    except OSError:
        return "off"
    return "on"


def shut_down(folder: Path, how: str) -> None:
    """Shut the file system that is mounted on *folder* down: from now on it refuses everything, until it is mounted
    again."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("I", SHUT_DOWN_HOWS[how]))
    finally:
        os.close(fd)


@contextmanager
def another_boot(folder: Path, number: int = 1) -> Iterator[None]:
    """Processes that are started inside the block find that the machine has been restarted, so many times."""
    other = folder / f"boot_id-{number}"
    other.write_text(f"00000000-0000-4000-8000-{number:012}\n")
    run("mount", "--bind", other, BOOT_ID)
    try:
        yield
    finally:
        run("umount", BOOT_ID)


if __name__ == "__main__":
    _run_alone(Path(sys.argv[1]))
