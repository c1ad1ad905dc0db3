"""Several executors: what is lost, added and taken away, and that the result is the same all the same."""

import os
import signal
import threading
import time

import pytest

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
BOTH_EXECUTORS = {"spark_cores_max": "2", "spark_scheduler_minRegisteredResourcesRatio": "1.0"}
"""Spark begins when it has both."""
SPECULATION = {
    "spark_speculation": "true",
    "spark_speculation_interval": "100ms",
    "spark_speculation_minTaskRuntime": "200ms",
    "spark_speculation_quantile": "0.3",
}

pytestmark = pytest.mark.timeout(900)  # JVMs start by the dozen, on a machine that may be busy


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(20 if LONG else 1))
def test_executors_and_agents_that_die_or_stop_at_random_do_no_harm(seed, drive, stream, blows, store_url, tmp_path):
    """With speculation on: what an executor that was stopped began is done by another meanwhile, then twice."""
    batches = 6
    given = stream(tmp_path / "query", batches, seed=seed)
    planned = blows(seed, batches)
    scheme, format = ("log", "file", "lmdb", "redis")[seed % 4], "12"[seed // 4 % 2]
    print(f"seed {seed}, {scheme}, checkpoint format {format}: {planned}")
    settings = {**SPECULATION, "spark_sql_streaming_stateStore_checkpointFormatVersion": format}
    driver = drive(given, LOCAL_CLUSTER, store_url(scheme), **settings)
    threads = []
    for batch in driver.batches():
        for blow in planned:
            if blow.batch == batch:
                threads.append(threading.Thread(target=blow.strike, args=(driver,)))
                threads[-1].start()
    for thread in threads:
        thread.join()
    driver.wait()
    assert given.found() == given.truth


def test_executors_are_lost_added_and_taken_away_and_the_restart_has_fewer(cluster, drive, stream, tmp_path):
    given = stream(tmp_path / "query", 8)
    first, second = cluster.add_worker(), cluster.add_worker()
    url = f"lmdb://{tmp_path}/store"
    driver = drive(given, cluster.url, url, spark_decommission_enabled="true")
    driver.lives_below([first.pid, second.pid])
    for batch in driver.batches():
        if batch == 1:
            os.kill(driver.executors()[0], signal.SIGKILL)
        elif batch == 2:
            driver.lives_below([first.pid, second.pid, cluster.add_worker().pid])
        elif batch == 3:
            first.decommission()
        elif batch == 5:
            break
    driver.kill()
    assert "Decommission" in first.log.read_text()
    assert given.found() != given.truth  # there is something left to do
    first.kill()
    second.kill()
    drive(given, cluster.url, url).wait()
    assert given.found() == given.truth


def test_a_backend_that_not_all_executors_see_is_refused(cluster, drive, stream, tmp_path):
    for host in ("127.0.0.1", "127.0.0.2"):
        cluster.add_worker(host)
    given = stream(tmp_path / "query", 1)
    for url, says in (
        (
            "memory:",
            "memory: keeps its data in one process, and there are 2 executors: choose a backend that they share",
        ),
        (f"file://{tmp_path}", "file: keeps its data on one host, and the executors are on 2 hosts: choose a backend"),
    ):
        driver = drive(given, cluster.url, url, **BOTH_EXECUTORS, spark_task_maxFailures="1")
        with pytest.raises(AssertionError, match=says):
            driver.wait()


def test_a_backend_that_an_executor_which_joins_later_does_not_see_is_refused(cluster, drive, stream, tmp_path):
    """Also where no state has moved: here the tasks that have some stay on the first host."""
    cluster.add_worker()
    given = stream(tmp_path / "query", 40)
    hold = given.folder / "hold-1"
    hold.touch()
    settings = {"spark_task_maxFailures": "1", "spark_locality_wait": "1h"}
    driver = drive(given, cluster.url, f"file://{tmp_path}/store", **settings)
    for batch in driver.batches():
        if batch == 1:
            second = cluster.add_worker("127.0.0.2")
            driver.lives_below([second.pid])
            while not driver.executors():
                time.sleep(0.1)
            hold.unlink()
    with pytest.raises(AssertionError, match="file: keeps its data on one host, and the executors are on 2 hosts"):
        driver.wait()
    assert list((given.folder / "out").glob("*.json"))  # before that, it was enough
