"""A store that is as unruly as the contract allows, and processes that take turns on it, both led by one seed.

Every call stops at its beginning and at its end, and whoever goes on next is drawn. A write that has begun is carried
out at any moment before it returns. A listing shows any part of what came or went meanwhile.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random

from safekeeper import Backend, Batch, CheckpointId, Receipt, Scope, Survives


class Turns:
    """Lets one of several threads go on at a time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._changed = threading.Condition()
        self._waiting: dict[int, bool] = {}
        self._expected = 0

    def run(self, *works: Callable[[], object]) -> None:
        """Do all *works*, each in a thread, one step of one of them at a time."""
        errors: list[BaseException] = []

        def do(work: Callable[[], object]) -> None:
            try:
                self.wait()
                work()
            except BaseException as error:
                errors.append(error)
            finally:
                with self._changed:
                    self._expected -= 1
                    self._draw()

        self._expected = len(works)
        threads = [threading.Thread(target=do, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for error in errors:
            raise error

    def wait(self) -> None:
        """Wait until it is this thread's turn again."""
        me = threading.get_ident()
        with self._changed:
            self._waiting[me] = False
            self._draw()
            assert self._changed.wait_for(lambda: self._waiting[me], 60)
            del self._waiting[me]

    def _draw(self) -> None:
        if self._waiting and len(self._waiting) == self._expected:
            self._waiting[self._random.choice(list(self._waiting))] = True
            self._changed.notify_all()


class UnrulyStore(Backend):
    """Values in memory. Only the thread whose turn it is touches them."""

    survives = Survives.NOTHING
    scope = Scope.PROCESS

    def __init__(self, random: Random, turns: Turns) -> None:
        super().__init__()
        self._random, self._turns = random, turns
        self.values: dict[CheckpointId, bytes] = {}
        self._begun: list[Batch] = []
        self._listings: list[tuple[dict[bytes, bool], str]] = []

    @classmethod
    def from_url(cls, url):
        raise NotImplementedError

    def write(self, batch: Batch) -> Receipt:
        self._begun.append(batch)
        self._step()
        while batch in self._begun:
            self._step()
        return Receipt(self.survives)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self._step()
        found = [self.values.get(id) for id in ids]
        self._step()
        return found

    def keys(self, group: str) -> Iterator[bytes]:
        self._step()
        steady = {id.key: True for id in self.values if id.group == group}
        listing = (steady, group)
        self._listings.append(listing)
        self._step()
        self._listings = [other for other in self._listings if other is not listing]
        return iter([key for key, sure in steady.items() if sure or self._random.random() < 0.5])

    def groups(self) -> Iterator[str]:
        return iter({id.group for id in self.values})

    def _step(self) -> None:
        """Let somebody else go on, after some of what was begun was carried out."""
        while self._begun and self._random.random() < 0.5:
            batch = self._begun.pop(self._random.randrange(len(self._begun)))
            for id, value in batch.items():
                self._set(id, value)
        self._turns.wait()

    def _set(self, id: CheckpointId, value: bytes | None) -> None:
        if value is None:
            self.values.pop(id, None)
        else:
            self.values[id] = value
        for seen, group in self._listings:
            if group == id.group and (value is None) == (id.key in seen):
                seen[id.key] = False
