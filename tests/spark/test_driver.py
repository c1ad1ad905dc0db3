"""A driver as a process of its own: started by `spark-submit` with `--conf` alone, ended and killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from safekeeper.spark import build

HERE = Path(__file__).parent


@pytest.fixture
def submit(environment, quick, tmp_path):
    """Starts the job, with nothing but `--conf` to tell Spark of safekeeper. The process is that of the JVM."""
    url = f"file://{tmp_path}/store"
    printed = subprocess.run(
        [sys.executable, "-m", "safekeeper.spark", "conf", url], capture_output=True, text=True, check=True
    )
    spark = ["--master", "local[2]", *(word for item in quick.items() for word in ("--conf", "=".join(item)))]
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "1.txt").write_text("a\nb\na\n")
    job = [str(HERE / "job.py"), str(tmp_path / "inputs"), str(tmp_path / "checkpoint")]
    children = []

    def submit(*arguments):
        command = [str(build.spark_home() / "bin" / "spark-submit"), *printed.stdout.split(), *spark, *job, *arguments]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return children[-1]

    yield submit
    for child in children:
        child.kill()
        child.communicate()


def read_until_done(job):
    lines = []
    for line in job.stdout:
        lines.append(line.strip())
        if line == "done\n":
            return lines
    raise AssertionError(lines)


def is_there(pid):
    """Whether the process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_the_end_of(pids):
    deadline = time.monotonic() + 120
    while any(map(is_there, pids)):
        assert time.monotonic() < deadline, "agents were left behind"
        time.sleep(0.05)


@pytest.mark.timeout(900)  # three processes start, twice
def test_spark_submit_with_conf_alone_keeps_state_in_the_backend_and_leaves_no_agent(submit, tmp_path, agents_of):
    job = submit()
    assert "counts [('a', 2), ('b', 1)]" in read_until_done(job)
    running = agents_of(job.pid)
    assert job.wait() == 0
    wait_for_the_end_of(running)
    assert list(tmp_path.glob("store/*/*.ckpt"))

    (tmp_path / "inputs" / "2.txt").write_text("a\nc\n")
    again = submit("wait")
    assert "counts [('a', 3), ('b', 1), ('c', 1)]" in read_until_done(again)
    running = agents_of(again.pid)
    assert running
    again.kill()
    again.wait()
    wait_for_the_end_of(running)
