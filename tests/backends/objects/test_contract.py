import secrets

import fsspec
import pytest

from safekeeper.testing import BackendContract


class TestLocalFolder(BackendContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"objects+file://{tmp_path}/store"


class TestMemory(BackendContract):
    @pytest.fixture
    def url(self):
        return f"objects+memory://{secrets.token_hex(6)}/store"

    def traces(self, url):
        return fsspec.filesystem("memory").find(url.removeprefix("objects+"))
