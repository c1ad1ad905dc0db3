"""LangGraph's own conformance suite, every capability."""

import asyncio

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from safekeeper.langgraph import SafeKeeperSaver

from ..conftest import KINDS

TESTS = 81
"""How many there are; fewer would mean that some are skipped."""


@pytest.mark.parametrize(("kind", "encrypted"), [*((kind, False) for kind in KINDS), ("log", True)])
def test_every_capability_passes(new_url, kind, encrypted):
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef") if encrypted else None

    @checkpointer_test(name="SafeKeeperSaver")
    async def saver():
        async with SafeKeeperSaver(new_url(kind), serde=serde) as made:
            yield made

    report = asyncio.run(validate(saver))
    assert report.results.keys() == {capability.value for capability in Capability}
    assert {name: result.failures for name, result in report.results.items() if not result.passed} == {}
    assert sum(result.tests_passed for result in report.results.values()) >= TESTS
