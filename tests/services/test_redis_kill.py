"""The server is killed in the middle of a stream of saves: what was acknowledged is there again, as declared."""

import os
import random
import threading
import time

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, SafekeeperError, Survives
from safekeeper.dev.redis import RedisServer

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
KILLS = 200 if LONG else 3
WRITERS = 4
ON_DISK = Survives.PROCESS | Survives.OS | Survives.POWER


class Writer:
    """Writes 1, 2, 3, ... to an id of its own, now and then as a large value."""

    def __init__(self, number):
        self.id = CheckpointId(f"group{number % 2}", b"%d" % number)
        self.tried = self.acknowledged = 0

    def write_until_it_fails(self, store):
        try:
            while True:
                self.tried += 1
                size = 600_000 if self.tried % 20 == 0 else 1000
                store.write(Batch({self.id: b"%d".ljust(size) % self.tried}))
                self.acknowledged = self.tried
        except SafekeeperError:
            pass


def kill_in_the_middle(server, store, writers):
    """Let all writers write, kill the server under them, and start it again."""
    threads = [threading.Thread(target=writer.write_until_it_fails, args=[store]) for writer in writers]
    before = sum(writer.acknowledged for writer in writers)
    for thread in threads:
        thread.start()
    while sum(writer.acknowledged for writer in writers) < before + 20 and any(thread.is_alive() for thread in threads):
        time.sleep(0.001)  # on a slow machine they may give up by themselves
    time.sleep(random.uniform(0, 0.3))
    server.kill()
    for thread in threads:
        thread.join()
    server.start()


@pytest.mark.crash
@pytest.mark.timeout(7200 if LONG else 300)
@pytest.mark.parametrize(
    ("settings", "survives"),
    (
        ({"appendonly": "yes", "appendfsync": "always"}, ON_DISK),
        ({"appendonly": "yes", "appendfsync": "no"}, Survives.PROCESS),
        ({"appendonly": "yes", "appendfsync": "everysec"}, Survives.NOTHING),
        ({"appendonly": "no"}, Survives.NOTHING),
    ),
    ids=("always", "no", "everysec", "off"),
)
@pytest.mark.parametrize("program", ("redis-server", "valkey-server"))
def test_what_was_acknowledged_survives_the_server_as_declared(tmp_path, fresh, program, settings, survives):
    writers = [Writer(number) for number in range(WRITERS)]
    lost = 0
    with RedisServer(tmp_path, program=program, **settings) as server:
        url = fresh(server)
        with safekeeper.open(f"{url}&timeout=1") as store:
            assert store.survives == survives
            for _ in range(KILLS):
                kill_in_the_middle(server, store, writers)
                with safekeeper.open(url) as witness:
                    seen = dict(zip(writers, numbers(witness, writers), strict=True))
                for writer, number in seen.items():
                    assert number <= writer.tried
                    lost += max(0, writer.acknowledged - number)
                    if Survives.PROCESS in survives:
                        assert number >= writer.acknowledged, f"{program} {settings}: an acknowledged save is gone"
                    writer.acknowledged = writer.tried = number
    print(f"{program} {settings}: {lost} acknowledged saves were lost in {KILLS} kills under {WRITERS} writers")


def numbers(store, writers):
    """What each writer's id holds; 0 if nothing. The listings must agree with that."""
    values = store.read([writer.id for writer in writers])
    there = {writer.id for writer, value in zip(writers, values, strict=True) if value is not None}
    assert {CheckpointId(group, key) for group in store.groups() for key in store.keys(group)} == there
    return [int(value or b"0") for value in values]
