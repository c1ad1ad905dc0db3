"""The part of the contract on which `safekeeper.claims` stands: a listing shows what was written before it began."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from safekeeper import claims
from safekeeper.backend import Backend, CheckpointId, Scope
from safekeeper.errors import Conflict
from safekeeper.testing.claiming import ACKNOWLEDGED, BEATEN, BLOCKS
from safekeeper.testing.contract.base import Kit, Opener, at_once, put
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

    @pytest.mark.parametrize("where", ["write", "check"])
    def test_a_stopped_owner_that_comes_back_acknowledges_nothing(
        self, url: str, store: Backend, group: str, where: str
    ) -> None:
        if store.scope < Scope.HOST:
            pytest.skip("other processes do not see this store")
        owner = start_python("safekeeper.testing.claiming", url, group, where, stdout=subprocess.PIPE)
        with owner:
            try:
                _wait_until_stopped(owner)
                claim = claims.take(store, group)
                found = set(store.keys(group))
                owner.send_signal(signal.SIGCONT)
                reports, _ = owner.communicate(timeout=PATIENCE)
            finally:
                owner.kill()
        assert reports == ACKNOWLEDGED * BLOCKS + BEATEN, "an owner acknowledged a block after it was beaten"
        assert {b"%d" % number for number in range(BLOCKS)} <= found, "a successor did not see what was acknowledged"
        claim.check()


def _holds(claim: claims.Claim) -> bool:
    try:
        claim.check()
    except Conflict:
        return False
    return True


def _wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + PATIENCE
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, "the owner ended by itself: its standard error says why"
        if time.monotonic() > give_up:
            raise TimeoutError(f"the owner did not come to its stop within {PATIENCE:g} s")
        time.sleep(0.01)
