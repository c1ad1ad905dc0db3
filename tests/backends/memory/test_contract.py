import secrets

import pytest

from safekeeper.testing import BackendContract


class TestMemory(BackendContract):
    @pytest.fixture
    def url(self):
        return f"memory:{secrets.token_hex(6)}"
