"""What the `with` blocks of `Checkpointed` enter."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import NoReturn, TypeVar

T = TypeVar("T")


class Holding(AbstractContextManager[T]):
    """An element that one thread has inside a `with` block. `async with` is refused: waiting would stop the loop."""

    def __init__(self, inside: AbstractContextManager[T]) -> None:
        self._inside = inside

    def __enter__(self) -> T:
        return self._inside.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._inside.__exit__(kind, error, trace)

    def __aenter__(self) -> NoReturn:
        raise TypeError(
            "elements have no asynchronous blocks yet: use `with`, await nothing inside it, and run it in another"
            " thread where it may have to wait (asyncio.to_thread)"
        )

    def __aexit__(self, *_: object) -> NoReturn:
        raise TypeError("elements have no asynchronous blocks yet")
