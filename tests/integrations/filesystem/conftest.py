import pytest

from safekeeper.fsspec import SafekeeperFileSystem

from ..conftest import KINDS


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def make_fs(new_url):
    """Makes file systems, each with a store of its own unless it is given one."""
    made = []

    def make(kind="log", url=None, **options):
        fs = SafekeeperFileSystem(url or new_url(kind), skip_instance_cache=True, **options)
        made.append(fs)
        return fs

    yield make
    for fs in made:
        fs.close()
