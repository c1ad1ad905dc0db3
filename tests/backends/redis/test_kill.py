"""The server is killed in the middle of a stream of saves: what was acknowledged is there again, as declared."""

import os

import pytest

import safekeeper
from safekeeper import Survives
from safekeeper.dev.redis import RedisServer

from ..killing import Writer, kill_in_the_middle, numbers

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
KILLS = 200 if LONG else 3
WRITERS = 4
ON_DISK = Survives.PROCESS | Survives.OS | Survives.POWER


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
    writers = [Writer(number, large_bytes=600_000, large_every=20) for number in range(WRITERS)]
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
