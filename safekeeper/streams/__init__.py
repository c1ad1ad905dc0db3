"""Streams: numbered elements that are retained until every reader has acknowledged them.

    with closing(open_outlet("redis://127.0.0.1:6379/0?stream=words", readers=["counter"])) as words:
        words.send([StreamElement(words.last + 1, b"to be")])

    with closing(open_inlet("redis://127.0.0.1:6379/0?stream=words", reader="counter")) as words:
        for element in words.read(timeout=1):
            ...
            words.acknowledge(element.number)

Read in this order: `carrier` (the contract), `registry`, `retained` (numbers and readers, without I/O), `frames` and
`store` (a stream in any backend), `tcp` (from process to process). Redis carries streams too:
`backends/redis/stream.py`.
`outbox` is for what is not a stream.
"""

from safekeeper.streams.carrier import (
    Carrier,
    Inlet,
    Outlet,
    Position,
    StreamElement,
    StreamStatus,
    SupportsEpoch,
    SupportsNotice,
    SupportsSurvey,
)
from safekeeper.streams.outbox import Outbox
from safekeeper.streams.registry import open_inlet, open_outlet

__all__ = [
    "Carrier",
    "Inlet",
    "Outbox",
    "Outlet",
    "Position",
    "StreamElement",
    "StreamStatus",
    "SupportsEpoch",
    "SupportsNotice",
    "SupportsSurvey",
    "open_inlet",
    "open_outlet",
]
