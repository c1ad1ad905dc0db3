"""Power cuts at any moment of several writers, on a real ext4, for every backend on local files.

`SAFEKEEPER_EXPLORER_SEED` repeats the choices of a run; the order in which processes ran comes from the machine, so a
failure keeps its recording, from which each state can be made again (see `explorer`).
"""

from __future__ import annotations

import os
from random import Random

import pytest

from .explorer import STORES, Exploration, explore
from .mounts import alone

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
ROUNDS, STATES, TURNS = (10, 100, 12) if LONG else (1, 8, 4)
SEED = int(os.environ.get("SAFEKEEPER_EXPLORER_SEED") or Random().randrange(1 << 30))


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("round", range(ROUNDS))
@pytest.mark.parametrize("scheme", STORES)
def test_no_power_cut_loses_what_was_acknowledged(tmp_path, scheme, round):
    print(f"SAFEKEEPER_EXPLORER_SEED={SEED}")
    explored = alone(explore, tmp_path, Exploration(scheme, SEED + round, STATES, TURNS), tmp_path / "recording")
    print(explored)
    assert not explored.bad, f"the recording is in {tmp_path}/recording:\n" + "\n".join(explored.bad)
    assert explored.states == STATES
    assert explored.acknowledged > 0, "nothing was acknowledged, so nothing was tried"


@pytest.mark.crash
@pytest.mark.parametrize(("scheme", "pretended"), [*((scheme, "syncs") for scheme in STORES), ("file", "folder syncs")])
def test_the_explorer_finds_a_backend_that_does_not_sync(tmp_path, scheme, pretended):
    print(f"SAFEKEEPER_EXPLORER_SEED={SEED}")
    what = Exploration(scheme, SEED, states=50, turns=4, pretended=pretended)
    assert alone(explore, tmp_path, what, tmp_path / "recording").bad
