"""Backends around a backend, for tests and measurements: `Slow` takes its time, `Faulty` fails or stops where told to.

Both pass on the contract and nothing else: a wrapped backend has no optional powers.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt
from safekeeper.errors import BadUrl, SafekeeperError, Unavailable
from safekeeper.url import Url

Method = Literal["write", "read", "keys", "groups"]
When = Literal["before", "after"]


class _Wrapper(Backend):
    """Passes every call on. Closing it closes what is inside."""

    def __init__(self, inner: Backend) -> None:
        super().__init__()
        self.inner = inner
        self.survives, self.asserted, self.scope = inner.survives, inner.asserted, inner.scope

    @classmethod
    def from_url(cls, url: Url) -> Self:
        raise BadUrl(f"{cls.__name__} has no URL: open the backend and wrap it")

    @contextmanager
    def _around(self, method: Method) -> Iterator[None]:
        self.check_open()
        yield

    def write(self, batch: Batch) -> Receipt:
        with self._around("write"):
            return self.inner.write(batch)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        with self._around("read"):
            return self.inner.read(ids)

    def keys(self, group: str) -> Iterator[bytes]:
        with self._around("keys"):
            return self.inner.keys(group)

    def groups(self) -> Iterator[str]:
        with self._around("groups"):
            return self.inner.groups()

    def close(self) -> None:
        self.inner.close()
        super().close()


class Slow(_Wrapper):
    """Every call takes at least so many seconds longer than the backend inside takes."""

    def __init__(
        self,
        inner: Backend,
        *,
        write: float = 0.0,
        read: float = 0.0,
        listing: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._seconds: dict[Method, float] = {"write": write, "read": read, "keys": listing, "groups": listing}
        self._sleep = sleep

    @contextmanager
    def _around(self, method: Method) -> Iterator[None]:
        self.check_open()
        self._sleep(self._seconds[method])
        yield


class Gate:
    """Where calls wait. `wait_for(n)` returns when the *n*-th call has arrived; `release` lets all of them go on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived = 0
        self._released = False

    def wait_for(self, calls: int = 1, timeout: float = 60.0) -> None:
        """Return when *calls* calls have arrived. Raise `TimeoutError` if they do not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrived >= calls, timeout):
                raise TimeoutError(f"{self._arrived} of {calls} calls arrived within {timeout:g} s")

    def release(self) -> None:
        """Let everybody through, now and later."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def _pass(self) -> None:
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._released)


@dataclass(slots=True)
class _Fault:
    method: Method
    when: When
    striking: range
    """The calls at which it strikes, counted from 0."""
    strike: Callable[[], None]
    seen: int = 0

    def is_due(self) -> bool:
        """Whether it strikes at this call, which it counts."""
        self.seen += 1
        return self.seen - 1 in self.striking


class Faulty(_Wrapper):
    """Fails and stops where it is told to; otherwise it is the backend inside.

        faulty.fail("write")                            the next write raises Unavailable and does nothing
        faulty.fail("write", when="after", times=2)     two writes happen, and raise Unavailable all the same
        with faulty.hold("write") as gate:              writes stop before they begin, until the block ends
            ...
            gate.wait_for(1)

    Of `keys` and `groups` it is the call that fails or stops, not a later step of the iterator.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        """How often each method was called, failed calls included."""
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()

    def fail(
        self,
        method: Method,
        *,
        when: When = "before",
        skip: int = 0,
        times: int = 1,
        error: SafekeeperError | None = None,
    ) -> None:
        """Let *times* calls of *method* raise *error*, after *skip* calls that go well."""

        def strike() -> None:
            raise error or Unavailable(f"{method}: a fault was injected {when} it")

        self._add(_Fault(method, when, range(skip, skip + times), strike))

    @contextmanager
    def hold(self, method: Method, *, when: When = "before") -> Iterator[Gate]:
        """Stop every call of *method* at a gate that opens when the block ends, or earlier by `Gate.release`."""
        gate = Gate()
        fault = _Fault(method, when, range(sys.maxsize), gate._pass)
        self._add(fault)
        try:
            yield gate
        finally:
            with self._lock:
                self._faults.remove(fault)
            gate.release()

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    @contextmanager
    def _around(self, method: Method) -> Iterator[None]:
        self.check_open()
        with self._lock:
            self.calls[method] += 1
        self._strike(method, "before")
        yield
        self._strike(method, "after")

    def _strike(self, method: Method, when: When) -> None:
        with self._lock:
            concerned = [fault for fault in self._faults if (fault.method, fault.when) == (method, when)]
            due = [fault for fault in concerned if fault.is_due()]
        for fault in due:
            fault.strike()
