import pytest

from safekeeper.testing import BackendContract


@pytest.mark.timeout(1800)  # of the long form
class TestFile(BackendContract):
    long_kills = 200

    @pytest.fixture
    def url(self, tmp_path):
        return f"file://{tmp_path}/store"
