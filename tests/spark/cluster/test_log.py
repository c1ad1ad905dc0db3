"""Two executors on one host that write one `log`."""

import os
import signal

import pytest

pytestmark = pytest.mark.timeout(900)  # JVMs start by the dozen, on a machine that may be busy


@pytest.mark.crash
def test_two_executors_share_one_log_although_they_are_killed_in_turn(drive, stream, tmp_path):
    """The partitions of an executor that is killed move to the other one, which reads what the dead one wrote."""
    given, root = stream(tmp_path / "query", 6), tmp_path / "store"
    driver = drive(given, "local-cluster[2,1,1024]", f"log://{root}")
    folders = 0
    for batch in driver.batches():
        folders = max(folders, len(list(root.glob("writer-*"))))
        if batch in (1, 3, 4):
            executors = driver.executors()
            if executors:
                os.kill(executors[batch % len(executors)], signal.SIGKILL)
    driver.wait()
    assert given.found() == given.truth
    assert folders >= 2, "only one of them has written"
    assert len(list(root.glob("writer-*"))) <= 4
