"""`hdfs:` with `placement=peace` on a real cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, SafeKeeper, SupportsProgress
from safekeeper.agent import __main__ as agent
from safekeeper.backends.hdfs.peace import gathering
from safekeeper.backends.hdfs.peace.client import PeacePlacement
from safekeeper.backends.hdfs.peace.connect import SECRET_VARIABLE
from safekeeper.backends.hdfs.peace.serve import serve
from safekeeper.backends.hdfs.peace.topology import Topology
from safekeeper.errors import BadUrl, Unavailable
from safekeeper.url import Url

from ..kerberos import not_with_kerberos
from .test_gathering import counted

SECRET = "a secret for the tests"
HERE = Path(__file__).parent
CHUNKS = 4
LARGE = os.urandom(CHUNKS << 20)
OPTIONS = "large=1M&chunk=1M&placement=peace"


@pytest.fixture
def coordinator(hdfs_url):
    with serve(Url.parse(hdfs_url), Topology(), SECRET) as coordinator:
        yield coordinator


@pytest.fixture
def url(hdfs_url, coordinator, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    return f"{hdfs_url}?{OPTIONS}&peace=127.0.0.1:{coordinator.port}"


def test_chunks_and_segments_go_where_they_were_planned(url, coordinator):
    large, small = CheckpointId("g", b"large"), CheckpointId("g", b"small")
    with safekeeper.open(url) as store:
        store.write(Batch({large: LARGE, small: b"1"}))
        assert store.read([large, small]) == [LARGE, b"1"]
        counts = store.placement_counts()
        assert (counts.planned, counts.hits, counts.unplanned) == (CHUNKS + 1, CHUNKS + 1, 0)
        assert store.stats().details["files_as_planned"] == CHUNKS + 1
    assert coordinator.status().running == coordinator.status().waiting == 0


@pytest.fixture
def requests(coordinator):
    """What the coordinator is asked for: how many chunks, each time."""
    return counted(coordinator)


def test_eight_values_of_16_mib_are_one_request_of_eight(requests, coordinator, hdfs_url, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    values = {CheckpointId("g", b"%d" % n): LARGE[: 1 << 20] * 16 for n in range(8)}
    with safekeeper.open(
        f"{hdfs_url}?placement=peace&peace=127.0.0.1:{coordinator.port}&replication=1"
    ) as store:  # chunks as large as they are by default
        store.write(Batch(values))
        assert store.read(list(values)) == list(values.values())
    assert requests == [(8, "g")]


def test_a_state_of_five_parts_is_one_request_of_five(requests, coordinator, hdfs_url, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    id, state = CheckpointId("g", b"state"), LARGE[: 1 << 20] * 80
    url = f"{hdfs_url}?placement=peace&peace=127.0.0.1:{coordinator.port}&replication=1"
    with SafeKeeper(url, serializer=None, overflow="block") as keeper:
        keeper.save(id, state).result(300)
        assert requests == [(5, "g.parts")]
        keeper.save_at_turn(id, lambda: state, nbytes=len(state))
        assert requests == [(5, "g.parts")] * 2
        assert keeper.fetch(id) == state


def test_the_commits_of_four_partitions_are_one_request_of_four(requests, url, monkeypatch):
    """As an executor's agent saves them; each gets its own turn, wherever it is from."""
    monkeypatch.setattr(gathering, "GATHER_SECONDS", 1.0)  # others are using this machine, too
    with agent.open_keeper(agent.AgentSettings(f"{url}&replication=1")) as keeper:
        keeper.save(CheckpointId("warm", b"1"), b"1").result(60)
        tickets = [keeper.save(CheckpointId(f"partition {n}", b"commit"), bytes(1 << 20)) for n in range(4)]
        for ticket in tickets:
            ticket.result(120)
        assert keeper.backend.placement_counts().hits == 5  # and the segment
    assert [count for count, _ in requests] == [4]


def test_a_write_that_waits_for_its_turn_says_that_it_gets_on_and_is_then_planned(url, coordinator):
    with (
        closing(PeacePlacement(("127.0.0.1", coordinator.port), SECRET, host="127.0.0.1")) as other,
        safekeeper.open(url) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        assert isinstance(store, SupportsProgress)
        with other.chunks(100, 3, "other") as turns:
            assert turns.take().favoured  # and is not done before the end
            writing = pool.submit(store.write, Batch({CheckpointId("g", b"k"): LARGE}))
            for _ in range(3):
                before = store.last_progress
                while store.last_progress == before and not writing.done():
                    time.sleep(0.01)
            assert not writing.done()
        writing.result(60)
        counts = store.placement_counts()
        assert counts.planned == counts.hits > 1
        assert not counts.unplanned


def test_a_large_value_that_is_being_written_says_that_it_gets_on(hdfs_url):
    with safekeeper.open(f"{hdfs_url}?large=4M&chunk=64M") as store, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(store.write, Batch({CheckpointId("g", b"k"): bytes(64 << 20)}))
        seen = set()
        while not writing.done():
            seen.add(store.last_progress)
        assert writing.result()
        assert 0 < store.last_progress < time.monotonic()
    assert len(seen) > 4  # it is one chunk of 64 pieces: an unlucky reader of the clock misses most of them


def test_the_secret_may_be_the_password_of_the_url(hdfs_url, coordinator):
    with_password = hdfs_url.replace("//", "//:a%20secret%20for%20the%20tests@")
    with safekeeper.open(f"{with_password}?{OPTIONS}&peace=127.0.0.1:{coordinator.port}") as store:
        store.write(Batch({CheckpointId("g", b"k"): b"1"}))
        assert store.placement_counts().hits == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("placement=peace", "needs its coordinator: peace=HOST:PORT"),
        ("placement=peace&peace=nowhere", "'nowhere' is no HOST:PORT"),
        ("placement=peace&peace=127.0.0.1:1", "set SAFEKEEPER_PEACE_SECRET"),
        ("peace=127.0.0.1:1", "give both"),
        ("placement=piece", "it takes hdfs, peace"),
        ("placement=peace&peace=127.0.0.1:1&peace-wait=0", "take more than 0"),
    ],
)
def test_what_is_missing_is_said_in_one_line(hdfs_url, options, problem):
    with pytest.raises(BadUrl, match=problem) as found:
        safekeeper.open(f"{hdfs_url}?{options}")
    assert "\n" not in str(found.value)


@not_with_kerberos
def test_who_may_not_ask_for_the_data_nodes_is_told_to_list_them(hdfs_url):
    as_nobody = Url.parse(hdfs_url.replace("hdfs://", "hdfs://nobody@"))
    with pytest.raises(Unavailable, match="be it, or list them in a topology file") as found:
        serve(as_nobody, Topology(), SECRET).__enter__()
    assert "\n" not in str(found.value)


def test_a_coordinator_notices_which_data_nodes_come_and_go(hdfs, hdfs_url):
    with serve(Url.parse(hdfs_url), Topology(), SECRET, look_seconds=0.2) as coordinator:

        def wait_for(nodes):
            give_up = time.monotonic() + 240
            while set(coordinator.network.nodes) != {node.address for node in nodes}:
                assert time.monotonic() < give_up, "the plan is still for other DataNodes"
                time.sleep(0.05)

        wait_for(hdfs.data_nodes)
        hdfs.data_nodes[0].kill()
        try:
            wait_for(hdfs.data_nodes[1:])
        finally:
            hdfs.data_nodes[0].start()
        wait_for(hdfs.data_nodes)


@contextmanager
def command(*words):
    environment = os.environ | {SECRET_VARIABLE: SECRET}
    with subprocess.Popen(
        [sys.executable, "-m", "safekeeper.cli", "peace", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def test_the_command_serves_until_it_is_told_to_end(hdfs_url, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    with command("serve", hdfs_url, "--listen", "127.0.0.1:0") as child:
        said = child.stdout.readline()
        assert said.startswith("peace=127.0.0.1:"), child.stderr.read()
        assert "/default-rack 4" in said
        with safekeeper.open(f"{hdfs_url}?{OPTIONS}&{said.split()[0]}") as store:
            store.write(Batch({CheckpointId("g", b"k"): b"1"}))
            assert store.placement_counts().hits == 1
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0


def test_everything_is_written_when_the_coordinator_is_killed_in_the_middle_of_a_timestep(hdfs_url, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    ids = [CheckpointId(f"g{n}", b"large") for n in range(8)]
    with command("serve", hdfs_url, "--listen", "127.0.0.1:0", "--wire", "1") as child:
        url = f"{hdfs_url}?{OPTIONS}&{child.stdout.readline().split()[0]}"
        with safekeeper.open(url) as store, ThreadPoolExecutor(4) as pool:
            writes = [pool.submit(store.write, Batch({id: LARGE})) for id in ids]
            while store.placement_counts().planned < 4:
                time.sleep(0.001)
            child.kill()
            for write in writes:
                write.result()
            assert store.read(ids) == [LARGE] * len(ids)
            counts = store.placement_counts()
            assert counts.hits >= 4
            assert counts.unplanned > 0
            assert counts.planned + counts.unplanned > CHUNKS * len(ids)  # and a segment with their heads


def test_calibrating_needs_another_host(hdfs_url, tmp_path):
    with command("calibrate", hdfs_url, str(tmp_path / "topology.json")) as child:
        assert child.wait(120) == 2
        assert child.stderr.read() == "safekeeper: there is no DataNode on another host: nothing can be measured\n"


def test_a_query_on_spark_has_the_hit_rate_in_its_metrics(hdfs_url, tmp_path):
    """With no coordinator in the URL, there is one beside the Spark driver."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "1.json").write_text("".join(f'{{"first": {20_000 * n}}}\n' for n in range(3)))
    job = [sys.executable, str(HERE / "peace_query.py"), f"{hdfs_url}?{OPTIONS}"]
    done = subprocess.run(
        [*job, str(tmp_path / "inputs"), str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    metrics = json.loads(done.stdout.splitlines()[-1])
    assert metrics["safekeeperPlannedFiles"] >= 4  # each of two partitions commits several chunks
    assert metrics["safekeeperFilesAsPlanned"] >= 0.95 * metrics["safekeeperPlannedFiles"]
