"""fsspec's own abstract test suite."""

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from safekeeper.fsspec import SafekeeperFileSystem

pytestmark = pytest.mark.filterwarnings("ignore:Class-scoped fixtures")  # the suite's own


class SafekeeperFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, tmp_path):
        fs = SafekeeperFileSystem(f"log://{tmp_path}/store?sync=none", skip_instance_cache=True)
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self):
        return "main"

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(AbstractCopyTests, SafekeeperFixtures):
    pass


class TestGet(AbstractGetTests, SafekeeperFixtures):
    pass


class TestPut(AbstractPutTests, SafekeeperFixtures):
    pass


class TestOpen(AbstractOpenTests, SafekeeperFixtures):
    pass


class TestPipe(AbstractPipeTests, SafekeeperFixtures):
    pass
