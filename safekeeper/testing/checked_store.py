"""The kit on one store, whose URL an environment variable gives. `safekeeper check` lets pytest collect this file."""

from __future__ import annotations

import os

import hypothesis
import pytest

from safekeeper.backend import Scope
from safekeeper.registry import open as open_store
from safekeeper.testing import BackendContract

# That there is a mistake is enough here. To make its history shorter takes minutes.
hypothesis.settings.register_profile("check", phases=(hypothesis.Phase.generate,), report_multiple_bugs=False)
hypothesis.settings.load_profile("check")

URL_VARIABLE = "SAFEKEEPER_CHECKED_URL"
UNREACHABLE_VARIABLE = "SAFEKEEPER_CHECKED_UNREACHABLE"


class TestStore(BackendContract):  # type: ignore[misc,valid-type,unused-ignore]
    """All tests share one place, as they may."""

    @pytest.fixture
    def url(self) -> str:
        """The store that is checked."""
        return os.environ[URL_VARIABLE]

    @pytest.fixture
    def unreachable_url(self, request: pytest.FixtureRequest, url: str) -> str | None:
        """What the user gave, or the kit's own for stores with a path."""
        if given := os.environ.get(UNREACHABLE_VARIABLE):
            return given
        with open_store(url) as store:
            if store.scope == Scope.NETWORK:
                pytest.skip("no URL is known of such a store that cannot be reached: give one with --unreachable")
        return request.getfixturevalue("kits_unreachable_url")  # type: ignore[no-any-return]

    kits_unreachable_url = BackendContract.unreachable_url
