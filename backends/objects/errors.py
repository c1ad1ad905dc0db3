"""What fsspec and its drivers raise, as errors of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safekeeper.backends.shared.local_files import unavailable, unusable
from safekeeper.errors import SafekeeperError, Unavailable
from safekeeper.url import mask_logins


@contextmanager
def errors_as_unavailable(place: str, first_of_folder: bool = False) -> Iterator[None]:
    """Turn whatever a driver raises inside the block into an `Unavailable` that names the place.

    *first_of_folder*: it is the first write to a local folder, see `unusable`.
    """
    try:
        yield
    except SafekeeperError:
        raise
    except TimeoutError as error:
        raise Unavailable(f"{place}: no answer in time: try again, or allow more with timeout=") from error
    except OSError as error:
        explained = (unusable if first_of_folder else unavailable)(place, error)
        raise type(explained)(mask_logins(str(explained))) from error
    except Exception as error:
        raise Unavailable(mask_logins(f"{place}: {error or type(error).__name__}")) from error
