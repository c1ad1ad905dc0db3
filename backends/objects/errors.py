"""What fsspec and its drivers raise, as errors of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safekeeper.backends.shared.local_files import os_errors_as_unavailable
from safekeeper.errors import SafekeeperError, Unavailable


@contextmanager
def errors_as_unavailable(place: str) -> Iterator[None]:
    """Turn whatever a driver raises inside the block into an `Unavailable` that names the place."""
    with os_errors_as_unavailable(place):
        try:
            yield
        except TimeoutError as error:
            raise Unavailable(f"{place}: no answer in time: try again, or allow more with timeout=") from error
        except (SafekeeperError, OSError):
            raise
        except Exception as error:
            raise Unavailable(f"{place}: {error or type(error).__name__}") from error
