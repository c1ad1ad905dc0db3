"""Every order of the steps of a few processes, by the protocol and with one mistake in it."""

import os
from collections.abc import Callable

import pytest

from .history import Operation, problem
from .model import (
    Mistake,
    Scenario,
    Steps,
    World,
    compact,
    cut_power,
    explore,
    join,
    mount_again,
    read,
    read_twice,
    take_over,
    write,
    write_back,
)

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def doing(*steps: Callable[[World], Steps]) -> Callable[[World], Steps]:
    """A process that does one thing after the other."""

    def program(world: World) -> Steps:
        for step in steps:
            yield from step(world)

    return program


def put(folder: int, value: str | None, epoch: int | None = None) -> Callable[[World], Steps]:
    """A write by the one that the folder belonged to in the beginning, or by that with another epoch."""
    return lambda world: write(world, world.folders[folder], epoch or world.epochs[folder], value)


def put_in_vain(folder: int, value: str) -> Callable[[World], Steps]:
    """A write whose sync fails; the writer gives up then."""
    return lambda world: write(world, world.folders[folder], world.epochs[folder], value, failing=True)


def tidy(folder: int) -> Callable[[World], Steps]:
    return lambda world: compact(world, world.folders[folder])


def save_head(folder: int) -> Callable[[World], Steps]:
    return lambda world: write_back(world, world.folders[folder])


def claim(folder: int, epoch: int) -> Callable[[World], Steps]:
    return lambda world: take_over(world, world.folders[folder], epoch)


SCENARIOS = {
    "a writer and a reader": Scenario((1,), (doing(put(0, "a"), put(0, "b")), read_twice)),
    "a writer that lives is taken over": Scenario((1,), (doing(put(0, "a")), doing(claim(0, 2)))),
    "a folder is claimed and written": Scenario((1,), (doing(put(0, "a")), doing(claim(0, 2), put(0, "b", 2)))),
    "two writers": Scenario((2, 1), (doing(put(0, "a"), put(0, "b")), doing(put(1, "c")))),
    "a put, replaced by a tombstone; both go": Scenario(
        (1, 2), (doing(put(0, "a"), put(1, None), tidy(0), tidy(1)), doing(read))
    ),
    "a put, and a tombstone that goes": Scenario((1, 2), (doing(put(0, "a")), doing(put(1, None), tidy(1)))),
    "a writer is killed and its folder claimed": Scenario(
        (2, 1), (doing(put(0, "a")), doing(put(1, "b")), doing(claim(0, 3))), frozenset({0})
    ),
    "a writer comes later": Scenario((1,), (doing(put(0, "a")), lambda world: join(world, "b"), read_twice)),
    "a put, and a tombstone that goes, watched": Scenario(
        (1, 2), (doing(put(0, "a")), doing(put(1, None), tidy(1)), doing(read))
    ),
}
POWER_CUTS = {
    "a writer": Scenario((1,), (doing(put(0, "a"), put(0, "b")), read, cut_power)),
    "two writers": Scenario((1, 2), (doing(put(0, "a")), doing(put(1, "b")), cut_power)),
    "a claim of a killed writer's folder": Scenario(
        (1,), (doing(put(0, "a")), doing(claim(0, 2), put(0, "b", 2), read), cut_power), frozenset({0})
    ),
    "what a claim found is read": Scenario(
        (1,), (doing(put(0, "a")), doing(claim(0, 2), read), cut_power), frozenset({0})
    ),
    "a sync fails, and the folder is claimed": Scenario(
        (1,), (doing(put(0, "a"), put_in_vain(0, "b")), doing(claim(0, 2), read), cut_power)
    ),
    "a pass": Scenario((1, 2), (doing(put(0, "a"), tidy(0), put(0, "b"), tidy(0)), read, cut_power)),
    "a put, replaced by a tombstone; both go": Scenario(
        (1, 2), (doing(put(0, "a"), put(1, None), tidy(0)), doing(tidy(1)), cut_power)
    ),
}
MOUNTED_AGAIN = {
    "a writer": Scenario((1,), (doing(put(0, "a"), put(0, "b")), save_head(0), mount_again)),
    "a writer, and another one": Scenario((1, 2), (doing(put(0, "a")), doing(put(1, "b")), save_head(0), mount_again)),
    "a writer whose folder is claimed": Scenario(
        (1,), (doing(put(0, "a")), doing(claim(0, 2), put(0, "b", 2)), save_head(0), mount_again), frozenset({0})
    ),
    "a sync that fails": Scenario((1,), (doing(put(0, "a"), put_in_vain(0, "b")), save_head(0), mount_again)),
}
LARGE = {
    "two writers and a reader": Scenario((1, 2), (doing(put(0, "a")), doing(put(1, "b")), read_twice)),
    "a delete, and compaction of both": Scenario(
        (1, 2), (doing(put(0, "a"), tidy(0)), doing(put(1, None), tidy(1)), doing(read))
    ),
    "a writer is killed, its folder claimed and written": Scenario(
        (2, 1), (doing(put(0, "a")), doing(put(1, "b")), doing(claim(0, 3), put(0, "c", 3))), frozenset({0})
    ),
    "a writer that lives is taken over, watched": Scenario(
        (1, 2), (doing(put(0, "a"), put(0, "b")), doing(claim(0, 3), put(0, "c", 3)), doing(read))
    ),
}


@pytest.mark.crash
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "scenario", [*SCENARIOS.values(), *POWER_CUTS.values(), *MOUNTED_AGAIN.values(), *(LARGE.values() if LONG else ())]
)
def test_no_order_of_the_steps_breaks_the_contract(scenario):
    found, states = explore(scenario, Mistake.NONE)
    assert found is None
    assert states > 50


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "mistake", [each for each in Mistake if each is not Mistake.NONE], ids=lambda mistake: mistake.name
)
def test_a_mistake_in_any_step_is_caught(mistake):
    caught = (
        explore(scenario, mistake)[0]
        for scenario in (*POWER_CUTS.values(), *MOUNTED_AGAIN.values(), *SCENARIOS.values())
    )
    assert any(caught), f"nobody notices that {mistake.value}"


HISTORIES = {
    "a read of what was never written": [("read", "a", 1, 2)],
    "a read before the write": [("read", "a", 1, 2), ("write", "a", 3, 4)],
    "a read of what is overwritten": [("write", "a", 1, 2), ("write", "b", 3, 4), ("read", "a", 5, 6)],
    "a read of what is deleted": [("write", "a", 1, 2), ("write", None, 3, 4), ("read", "a", 5, 6)],
    "a write that is not seen": [("write", "a", 1, 2), ("read", None, 3, 4)],
    "two overlapping writes seen in turns": [
        *[("write", "a", 1, 4), ("write", "b", 2, 3)],
        *[("read", "a", 5, 6), ("read", "b", 7, 8), ("read", "a", 9, 10)],
    ],
}


@pytest.mark.parametrize("operations", HISTORIES.values(), ids=HISTORIES)
def test_a_history_that_no_order_explains_is_found_out(operations):
    assert problem(Operation(*fields) for fields in operations) is not None


def test_a_history_that_an_order_explains_is_no_problem():
    fields = [("write", "a", 1, 4), ("write", "b", 2, 3), ("read", "a", 3, 5), ("read", "b", 6, 7), ("read", "b", 8, 9)]
    assert problem(Operation(*each) for each in fields) is None
