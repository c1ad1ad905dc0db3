"""What recovery an operator gets: which outputs its readers see after a failure, compared with a run without one.

    gap         some are missing
    divergent   some may be others than before, and contradict what was seen
    precise     exactly those of a run without a failure

The table holds for streams whose readers drop repeated numbers, as ours do; an output is numbered once.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from safekeeper.backend import Survives

Kind: TypeAlias = Literal["arbitrary", "deterministic", "convergent", "repeatable"]
"""What an operator promises of itself. "arbitrary": nothing; "deterministic": the same events in the same order have
the same effect; "convergent" and "repeatable": it depends on less than that."""
Release: TypeAlias = Literal["durable", "at-once"]
"""When outputs leave: when the block that has them is acknowledged, or at once."""
Recovery: TypeAlias = Literal["gap", "divergent", "precise"]


def guarantee(
    kind: Kind, release: Release, *, fuzzy: bool, survives: Survives, inputs: int = 1
) -> tuple[Recovery, str]:
    """What recovery this combination gives, and why or what to change."""
    for value, known in ((kind, Kind), (release, Release)):
        if value not in get_args(known):
            raise ValueError(f"{value!r} is not one of {', '.join(get_args(known))}")
    if not survives & Survives.PROCESS:
        return "gap", "the store does not survive a killed process: take one that does, such as log:"
    if release == "at-once" and inputs > 1:
        return "divergent", 'outputs leave before the order of the inputs is stored: take release="durable"'
    if kind != "arbitrary":
        return "precise", "what is done again is done as before, and readers drop what they have"
    if release == "at-once":
        return "divergent", 'outputs leave before they are stored: take release="durable", or kind="deterministic"'
    if fuzzy:
        return "divergent", 'recovery replays events: take capture=Every(...), or kind="deterministic"'
    return "precise", "nothing leaves before it is stored, and nothing that is stored is done again"
