"""The part of the contract on which `safekeeper.claims` stands: a listing shows what was written before it began."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from functools import partial

import pytest

from safekeeper import claims
from safekeeper.backend import Backend, CheckpointId, Scope
from safekeeper.errors import Conflict
from safekeeper.testing.claiming import BEATEN, block
from safekeeper.testing.contract.base import LONG, Kit, Opener, at_once, put
from safekeeper.testing.peer import PATIENCE, start_python


class ClaimsContract(Kit):
    """A name has one owner, and whoever had it before acknowledges nothing more."""

    def test_a_new_claim_ends_the_one_before(self, opened: Opener, group: str) -> None:
        handles = [opened(), opened()]
        before = claims.take(handles[0], group)
        for turn in range(1, 5):
            claim = claims.take(handles[turn % 2], group)
            claim.check()
            with pytest.raises(Conflict):
                before.check()
            before = claim

    def test_of_claims_at_once_at_most_one_holds(self, opened: Opener, group: str) -> None:
        handles = [opened() for _ in range(4)]
        for turn in range(3):
            name, taken = f"{group}-{turn}", list[claims.Claim]()

            def take(name: str, taken: list[claims.Claim], store: Backend) -> None:
                with suppress(Conflict):
                    taken.append(claims.take(store, name))

            at_once(*(partial(take, name, taken, store) for store in handles))
            held = [claim for claim in taken if _holds(claim)]
            assert len(held) <= 1, "two claims hold at the same time"
            put(handles[0], CheckpointId(name, b"after"), b"")  # the store is as usable as before

    def test_a_stopped_owner_that_comes_back_acknowledges_nothing(self, url: str, store: Backend, group: str) -> None:
        if store.scope < Scope.HOST:
            pytest.skip("other processes do not see this store")
        for turn in range(20 if LONG else 2):
            name = f"{group}-{turn}"
            with start_python("safekeeper.testing.claiming", url, name, stdout=subprocess.PIPE) as owner:
                try:
                    reports = _read(owner, 3 + turn)
                    owner.send_signal(signal.SIGSTOP)
                    claim = claims.take(store, name)
                    found = {key[16:] for key in store.keys(name)}
                    owner.send_signal(signal.SIGCONT)
                    while not reports.endswith(BEATEN):
                        reports += _read(owner, 1)
                finally:
                    owner.kill()
            acknowledged = {block(number) for number in range(len(reports) - 1)}
            assert acknowledged <= found, "a successor did not see what the owner before it has acknowledged"
            claim.check()


def _holds(claim: claims.Claim) -> bool:
    try:
        claim.check()
    except Conflict:
        return False
    return True


def _read(owner: subprocess.Popen[bytes], atleast: int) -> bytes:
    """What *owner* reports, *atleast* so many bytes."""
    assert owner.stdout is not None
    reports = b""
    while len(reports) < atleast:
        if not select.select([owner.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError(f"the owner reported nothing within {PATIENCE:g} s")
        if not (arrived := os.read(owner.stdout.fileno(), 1 << 16)):
            raise AssertionError("the owner ended by itself: its standard error says why")
        reports += arrived
    return reports
