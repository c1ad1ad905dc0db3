"""The laboratory is not in the wheel: what a study that needs it says there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_LABORATORY = "safekeeper.bench.lab"


@contextmanager
def needs_laboratory() -> Iterator[None]:
    """Import from the laboratory in this context. Where there is none, the study ends with a line that says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != _LABORATORY:
            raise
        raise SystemExit(
            "this study needs the laboratory, which is in a clone of the repository and not in the wheel:"
            " run it with pip install -e in a clone"
        ) from None
