import pytest

from safekeeper.testing import BackendContract


class TestLmdb(BackendContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"lmdb://{tmp_path}/store"
