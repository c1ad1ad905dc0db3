"""Two executors on one host that write one `log`."""

import os
import signal

import pytest

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"

pytestmark = pytest.mark.timeout(900)  # JVMs start by the dozen, on a machine that may be busy


@pytest.mark.crash
def test_two_executors_share_one_log_although_they_are_killed_in_turn(drive, stream, tmp_path):
    """The partitions of an executor that is killed move to the other one, which reads what the dead one wrote."""
    given, root = stream(tmp_path / "query", 12 if LONG else 4), tmp_path / "store"
    both = {"spark_cores_max": "2", "spark_scheduler_minRegisteredResourcesRatio": "1.0"}  # Spark waits for both
    driver = drive(given, "local-cluster[2,1,1024]", f"log://{root}", **both)
    folders = 0
    for batch in driver.batches():
        folders = max(folders, len(list(root.glob("writer-*"))))
        if batch % 3 and (executors := driver.executors()):
            os.kill(executors[batch % len(executors)], signal.SIGKILL)
    driver.wait()
    assert given.found() == given.truth
    assert folders >= 2, "only one of them has written"
    assert len(list(root.glob("writer-*"))) <= 4
