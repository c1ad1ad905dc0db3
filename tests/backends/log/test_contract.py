import pytest

from safekeeper.testing import BackendContract


@pytest.mark.timeout(3600)  # the long form kills 200 processes
class TestLog(BackendContract):
    long_kills = 200

    @pytest.fixture
    def url(self, tmp_path):
        return f"log://{tmp_path}/store"


class TestSmallSegments(BackendContract):
    """The whole contract with a new segment every few writes, and compaction all the time."""

    @pytest.fixture
    def url(self, tmp_path):
        return f"log://{tmp_path}/store?segment=4K"


class TestInterval(BackendContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"log://{tmp_path}/store?sync=interval&sync-interval=0.01&segment=64K"


class TestNone(BackendContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"log://{tmp_path}/store?sync=none"
