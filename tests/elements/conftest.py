"""The fixtures of the keeper's tests: what stands on a keeper is tested with the same."""

from collections.abc import Callable

import pytest

from safekeeper import Checkpointed

from ..keeper.conftest import _no_thread_is_left, eventually, long_form, store

__all__ = ["_no_thread_is_left", "eventually", "long_form", "store"]


@pytest.fixture
def let_it_sweep(eventually) -> Callable[[Checkpointed], None]:
    """Wait until the sweeper has looked after everything a few times."""

    def wait(group: Checkpointed, times: int = 4) -> None:
        sweeps, sweep = [], group._evict_what_is_idle
        group._evict_what_is_idle = lambda: sweeps.append(sweep())
        eventually(lambda: len(sweeps) >= times)
        group._evict_what_is_idle = sweep

    return wait
