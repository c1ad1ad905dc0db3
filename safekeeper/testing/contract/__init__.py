"""`BackendContract`: the whole contract as one pytest class.

Its tests are in one file per subject: `values`, `listing`, `lifecycle`, `concurrency`, `model`, `crash`; `scan`
and `create` for backends that have these; `claims` and `large` test what stands on the contract. The fixtures and
settings that a backend can override are in `base`.
"""

from __future__ import annotations

from safekeeper.testing.contract.claims import ClaimsContract
from safekeeper.testing.contract.concurrency import ConcurrencyContract
from safekeeper.testing.contract.crash import CrashContract
from safekeeper.testing.contract.create import CreateContract
from safekeeper.testing.contract.large import LargeContract
from safekeeper.testing.contract.lifecycle import LifecycleContract
from safekeeper.testing.contract.listing import ListingContract
from safekeeper.testing.contract.model import ModelContract
from safekeeper.testing.contract.scan import ScanContract
from safekeeper.testing.contract.values import ValuesContract


class BackendContract(
    ValuesContract,
    ListingContract,
    LifecycleContract,
    ConcurrencyContract,
    ModelContract,
    CrashContract,
    ScanContract,
    CreateContract,
    ClaimsContract,
    LargeContract,
):
    """Inherit this, give the fixture `url`, and every rule of `safekeeper.backend` is tested on your backend.

        class TestFile(BackendContract):
            @pytest.fixture
            def url(self, tmp_path):
                return f"file://{tmp_path}/store"

    SAFEKEEPER_TEST_LEVEL=long runs more histories and more kills; `kills`, `long_kills`, `examples` and `long_examples`
    say how many.
    """
