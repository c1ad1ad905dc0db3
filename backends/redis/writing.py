"""Writes: changes sent as transactions, and what is done when one of them does not come back.

To a server that stands alone all changes of a window go as one transaction. In a cluster a transaction stays in one
bucket, so there is one for each; they go out together, on a connection each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from redis import exceptions as driver

from safekeeper.backend import Batch, Survives
from safekeeper.backends.redis.layout import lease_name
from safekeeper.backends.redis.options import RedisOptions
from safekeeper.backends.redis.routing import ELSEWHERE, Router
from safekeeper.backends.redis.server import Command, Lease, Link, Node
from safekeeper.backends.redis.transaction import LATE, Change, changes, windows
from safekeeper.backends.redis.trouble import code_of, explain
from safekeeper.errors import Unavailable

_LANES_TOGETHER = 16
_NOT_DONE = {*ELSEWHERE, LATE}
_PAUSE = 0.05


class Writer:
    """Makes the changes that a batch asks for."""

    def __init__(self, router: Router, options: RedisOptions) -> None:
        self._router = router
        self._options = options
        self._with_large: set[str] = set()
        self.confirmed = Survives.HOST if options.replicas else Survives.NOTHING
        """What a write survives because replicas have confirmed it.

        WAITAOF adds nothing of its own: with `everysec` a server confirms syncs that it has not made.
        """

    def write(self, batch: Batch) -> Survives:
        """Make the changes; what they survive. When this raises, what was not done is not going to be done any more."""
        survives = ~Survives.NOTHING
        for window in windows(changes(self._options.prefix, batch, self._with_large)):
            survives &= self._make(window)
        return survives | self.confirmed

    def _make(self, waiting: Sequence[Change]) -> Survives:
        survives = ~Survives.NOTHING
        give_up = time.monotonic() + self._options.timeout
        while waiting:
            again: list[Change] = []
            follow_ups: list[Change] = []
            lanes = self._lanes(waiting)
            for start in range(0, len(lanes), _LANES_TOGETHER):
                for lane in self._run(lanes[start : start + _LANES_TOGETHER]):
                    if lane.is_done():
                        survives &= lane.link.facts.survives
                        follow_ups += self._follow_ups(lane)
                    else:
                        again += lane.changes
            if again and time.monotonic() > give_up:
                raise Unavailable(f"{lanes[0].node.address}: could not make the change in time: try again in a moment")
            if again and self._router.in_cluster:
                self._router.look_again()
            waiting = again + follow_ups
        return survives

    def _follow_ups(self, lane: _Lane) -> Iterator[Change]:
        for change, results in lane.results():
            if follow_up := change.left_untidied(results):
                self._with_large.add(change.group.name.decode())
                yield follow_up

    def _lanes(self, some: Sequence[Change]) -> list[_Lane]:
        if not self._router.in_cluster:
            return [_Lane(self._router.node_of(0), some, self._options)]
        by_bucket: dict[int, list[Change]] = {}
        for change in some:
            by_bucket.setdefault(change.group.bucket, []).append(change)
        return [_Lane(self._router.node_of(bucket), found, self._options) for bucket, found in by_bucket.items()]

    def _run(self, lanes: Sequence[_Lane]) -> Sequence[_Lane]:
        """Send *lanes* and hear what became of them. When this raises, none of them is still under way."""
        with ExitStack() as stack:
            for lane in lanes:
                lane.prepare(stack.enter_context(lane.node.link()))
            try:
                for lane in lanes:
                    lane.send()
                for lane in lanes:
                    lane.receive()
            except driver.RedisError as error:
                for lane in lanes:
                    lane.settle(timed_out=isinstance(error, driver.TimeoutError))
                broken = next(lane for lane in lanes if not lane.link.is_clean)
                raise explain(broken.node.address, error) from error
        return lanes


class _Lane:
    """Changes that go to a server together, and how far they have got: in a transaction, or if they only delete, one by
    one, since then each of them looks for the lease itself."""

    link: Link

    def __init__(self, node: Node, some: Sequence[Change], options: RedisOptions) -> None:
        self.node = node
        self.changes = some
        self._options = options
        self._in_transaction = not all(change.only_deletes for change in some)
        self._lease_seconds = options.timeout * 1.25  # a quarter of it in which the lease is good for more than one
        self._lease: Lease | None = None
        self._renews = False
        self._sent_at = 0.0
        self._sizes: list[int] = []
        self._sent = 0
        self._answers: list[Any] = []

    def prepare(self, link: Link) -> None:
        """Bring the parts of large values to the server and get a lease. Nothing of this can undo anything."""
        self.link = link
        try:
            if all(self._bring_parts(change) for change in self.changes):
                self._get_lease()
        except driver.RedisError as error:
            raise explain(self.node.address, error) from error

    def _bring_parts(self, change: Change) -> bool:
        if change.parts:
            if not self._went_well(self.link.call(list(change.sent_before()))):
                return False
            change.parts = ()
        return True

    def _get_lease(self) -> None:
        now = time.monotonic()
        bucket = self.changes[0].group.bucket
        lease = self.link.lease
        if (
            lease
            and lease.lasts_until - now >= self._options.timeout
            and (self._in_transaction or lease.bucket == bucket)
        ):
            self._lease = lease
            return
        name = lease_name(self._options.prefix, bucket)
        if self._went_well(self.link.call([(b"UNWATCH",), *Lease.commands(name, self._lease_seconds)])):
            self._lease = Lease.granted(name, bucket, self._lease_seconds, now)

    def _went_well(self, answers: Sequence[Any]) -> bool:
        """Whether the server did it; False if it has to be done elsewhere or later."""
        problem = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if problem is not None and code_of(problem) not in _NOT_DONE:
            raise explain(self.node.address, problem) from problem
        return problem is None

    def send(self) -> None:
        """Send the changes, if there is a lease, and what makes the connection ready for the next ones."""
        if self._lease is None:
            return
        commands = list(self._commands(self._lease))
        self._sent = len(commands)
        commands += _confirming(self._options)
        self.link.lease = None
        self._sent_at = time.monotonic()
        self._renews = self._lease.lasts_until - self._sent_at < self._options.timeout * 1.1
        again = Lease.commands(self._lease.name, self._lease_seconds)
        self.link.send([*commands, *(again if self._renews else again[1:])])

    def _commands(self, lease: Lease) -> Iterator[Command]:
        if not self._in_transaction:
            yield from (change.deleting(lease.name) for change in self.changes)
            return
        yield (b"MULTI",)
        for change in self.changes:
            queued = list(change.queued())
            self._sizes.append(len(queued))
            yield from queued
        yield (b"EXEC",)

    def receive(self) -> None:
        """Hear the answers."""
        if self._lease is None:
            return
        answers = self.link.receive()
        self._answers, watched = answers[: self._sent + 1], answers[-2:] if self._renews else answers[-1:]
        if any(isinstance(answer, Exception) for answer in watched):
            return
        lease = self._lease.renewed(self._lease_seconds, self._sent_at) if self._renews else self._lease
        if time.monotonic() < lease.lasts_until:
            self.link.lease = lease

    def is_done(self) -> bool:
        """Whether all changes were made; False if they have to be made again. Raise if the server refuses."""
        if self._lease is None:
            return False
        answers = self._answers[: self._sent]
        if self._in_transaction:
            done = answers.pop()
            if done is None:
                return False
            answers += done if isinstance(done, list) else [done]
        if not self._went_well(answers):
            return False
        if confirming := _confirming(self._options):
            self._check_confirmed(confirming[0], self._answers[self._sent])
        return True

    def _check_confirmed(self, command: Command, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise explain(self.node.address, answer) from answer
        wanted = [1, self._options.replicas] if command[0] == b"WAITAOF" else [self._options.replicas]
        counted = answer if isinstance(answer, list) else [answer]
        if any(count < number for count, number in zip(counted, wanted, strict=True)):
            raise Unavailable(
                f"{self.node.address}: made the write, but not enough replicas or append-only files have it "
                f"({counted} instead of {wanted}): look at them"
            )

    def results(self) -> Iterator[tuple[Change, Sequence[Any]]]:
        """What the transaction answered to each change."""
        if not self._in_transaction:
            return
        done = self._answers[self._sent - 1]
        start = 0
        for change, size in zip(self.changes, self._sizes, strict=True):
            yield change, done[start : start + size]
            start += size

    def settle(self, timed_out: bool) -> None:
        """If the transaction may still be on its way, see to it that it is not carried out any more.

        Without its lease it is not. So the lease is taken away, or if nobody can be reached, it expires.
        """
        if self._lease is None or self.link.is_clean:
            return
        while not timed_out and time.monotonic() < self._lease.gone_at:
            try:
                with self.node.link() as other:
                    if not isinstance(other.call([(b"DEL", self._lease.name)])[0], Exception):
                        return
            except driver.BusyLoadingError:
                return  # the server that had the transaction is no more: this one has just started
            except (driver.RedisError, Unavailable):
                time.sleep(_PAUSE)
        time.sleep(max(0.0, self._lease.gone_at - time.monotonic()))


def _confirming(options: RedisOptions) -> list[Command]:
    """What a transaction is followed by when the server's own answer is not enough."""
    wait_for = b"%d" % (options.timeout * 800)  # milliseconds; the answer must come before we stop listening
    if options.aof:
        return [(b"WAITAOF", b"1", b"%d" % options.replicas, wait_for)]
    return [(b"WAIT", b"%d" % options.replicas, wait_for)] if options.replicas else []
