"""Writes: changes sent under a lease, and what is done when the answer does not come.

To a server that stands alone all changes of a window go together. In a cluster a transaction stays in one bucket, so
there is a lane for each bucket, and the lanes go out at the same time, on a connection each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from redis import exceptions

from safekeeper.backend import Batch, CheckpointId, Survives
from safekeeper.backends.redis.errors import code_of, explain
from safekeeper.backends.redis.layout import lease_name
from safekeeper.backends.redis.options import Address, RedisOptions
from safekeeper.backends.redis.routing import ELSEWHERE, Router
from safekeeper.backends.redis.server import Command, RedisConnection, RedisNode, WriteLease
from safekeeper.backends.redis.transaction import LATE, LOAD_SCRIPTS, Change, Creation, changes, creation, windows
from safekeeper.errors import Unavailable

_BY_SCRIPT_BYTES = 4 * 1024
_BY_SCRIPT_CHANGES = 4
_LANES_TOGETHER = 16
_NOT_DONE = {*ELSEWHERE, LATE, "NOSCRIPT"}
_LEASE_LEFT = {"MOVED", "ASK"}
"""What a node answers that has given a lease away with its slot. Nothing can be done under it there any more."""
_PAUSE = 0.05


class RedisWriter:
    """Makes the changes that a batch asks for."""

    def __init__(self, router: Router, options: RedisOptions) -> None:
        self._router = router
        self._options = options
        self._with_large: set[str] = set()
        self.got_on = 0.0
        """When a server last made some of the changes of a write, as `time.monotonic` tells it."""
        self.confirmed = Survives.HOST if options.replicas else Survives.NOTHING
        """What a write survives because replicas have confirmed it.

        WAITAOF adds nothing of its own: with `everysec` a server confirms syncs that it has not made.
        """

    def write(self, batch: Batch) -> set[Survives]:
        """Make the changes; what they survive by the servers that made them. When this raises, what was not done is not
        going to be done any more."""
        survives: set[Survives] = set()
        try:
            for window in windows(changes(self._options.prefix, batch, self._with_large)):
                self._make(window, survives)
        except Unavailable:
            self._router.look_for_successors()
            raise
        return survives

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """Set *id* if it is absent; whether it was set with this *token*. When this raises, it is as with `write`."""
        change = creation(self._options.prefix, id, value, token)
        if change.head:
            self._with_large.add(id.group)
        try:
            self._make([change], set())
        except Unavailable:
            self._router.look_for_successors()
            raise
        return bool(change.answer)

    def _make(self, waiting: Sequence[Change], survives: set[Survives]) -> None:
        give_up = time.monotonic() + self._options.timeout
        while waiting:
            again: list[Change] = []
            follow_ups: list[Change] = []
            lanes = self._lanes(waiting)
            for start in range(0, len(lanes), _LANES_TOGETHER):
                for lane in self._run(lanes[start : start + _LANES_TOGETHER]):
                    if lane.is_done():
                        self.got_on = time.monotonic()
                        give_up = self.got_on + self._options.timeout  # for those that are still to be made
                        survives.add(lane.connection.facts.survives)
                        follow_ups += lane.follow_ups()
                    else:
                        again += lane.changes
            if again and time.monotonic() > give_up:
                raise Unavailable(f"{lanes[0].node.address}: could not make the change in time: try again in a moment")
            if again and self._router.in_cluster:
                self._router.look_again()
            if follow_ups:
                self._with_large.update(change.group.name for change in follow_ups)
            waiting = again + follow_ups

    def _lanes(self, some: Sequence[Change]) -> list[_Lane]:
        if not self._router.in_cluster:
            return [_Lane(self._router.node_of(0), some, _is_small(some), self._options)]
        by_bucket: dict[int, list[Change]] = {}
        for change in some:
            by_bucket.setdefault(change.group.bucket, []).append(change)
        # A script must have its lease in its own bucket, which costs a round trip if the last one was for another.
        return [_Lane(self._router.node_of(bucket), found, False, self._options) for bucket, found in by_bucket.items()]

    def _run(self, lanes: Sequence[_Lane]) -> Sequence[_Lane]:
        """Send *lanes* and hear what became of them. When this raises, none of them is still under way."""
        taken = []
        try:
            for lane in lanes:
                lane.connection = lane.node.take()
                taken.append(lane)
                lane.prepare()
            try:
                for lane in lanes:
                    lane.send()
                for lane in lanes:
                    lane.receive()
            except exceptions.RedisError as error:
                broken = [lane for lane in lanes if not lane.connection.is_clean]
                settled = [lane.settle(error) for lane in broken]
                if not all(settled):
                    raise explain(broken[0].node.address, error) from error
        finally:
            for lane in taken:
                lane.node.give_back(lane.connection)
        return lanes


class _Lane:
    """Changes that go to a server together, and how far they have got."""

    connection: RedisConnection

    def __init__(self, node: RedisNode, some: Sequence[Change], by_script: bool, options: RedisOptions) -> None:
        self.node = node
        self.changes = some
        self._by_script = by_script or all(change.only_deletes or isinstance(change, Creation) for change in some)
        self._options = options
        self._lease: WriteLease | None = None
        self._renews = False
        self._sent_at = 0.0
        self._sizes: list[int] = []
        self._sent = 0
        self._answers: list[Any] = []

    def prepare(self) -> None:
        """Bring the chunks of large values to the server and get a lease. Nothing of this can undo anything."""
        bringing = False
        try:
            self.node.ask_again(self.connection)
            bringing = True
            for change in self.changes:
                if change.chunks:
                    if not self._went_well(self.connection.call(change.bringing_chunks())):
                        return
                    change.chunks = ()
            bringing = False
            self._get_lease()
        except exceptions.RedisError as error:
            # A connection that was idle may be gone: then nothing is sent, and the next one is new. But chunks that may
            # still be on their way must not be sent again under the same name: they would expire under their head.
            if bringing or type(error) is not exceptions.ConnectionError:
                raise explain(self.node.address, error) from error

    def _get_lease(self) -> None:
        now = time.monotonic()
        bucket = self.changes[0].group.bucket
        lease = self.connection.lease
        fits = not (self._by_script and self.connection.facts.in_cluster) or (lease and lease.bucket == bucket)
        if lease and fits and lease.lasts_until - now >= self._options.timeout:
            self._lease = lease
            return
        name = lease_name(self._options.prefix, bucket)
        commands = [*LOAD_SCRIPTS, (b"UNWATCH",), *WriteLease.commands(name, self._lease_seconds)]
        if self._went_well(self.connection.call(commands)):
            granted = WriteLease.granted(name, bucket, self._lease_seconds, now)
            self._lease = granted if time.monotonic() < granted.lasts_until else None

    @property
    def _lease_seconds(self) -> float:
        return self._options.timeout * 1.25  # for a quarter of it the lease is good for another change

    def _went_well(self, answers: Sequence[Any]) -> bool:
        """Whether the server did it; False if it has to be done again, perhaps elsewhere. Raise if it refuses."""
        for answer in answers:
            if isinstance(answer, Exception):
                if code_of(answer) not in _NOT_DONE:
                    raise explain(self.node.address, answer) from answer
                return False
        return True

    def send(self) -> None:
        """Send the changes, if there is a lease, and what makes the connection ready for the next ones."""
        if self._lease is None:
            return
        if self._by_script:
            commands = [change.by_script(self._lease.name) for change in self.changes]
        else:
            commands = self._transaction()
        self._sent = len(commands)
        if self._options.aof or self._options.replicas:
            commands.append(confirming(self._options))
        self._sent_at = time.monotonic()
        self._renews = self._lease.lasts_until - self._sent_at < self._options.timeout * 1.1
        if self._renews:
            commands += [(b"UNWATCH",), *WriteLease.commands(self._lease.name, self._lease_seconds)]
        elif not self._by_script:
            commands.append((b"WATCH", self._lease.name))
        self.connection.lease = None
        self.connection.send(commands)

    def _transaction(self) -> list[Command]:
        commands: list[Command] = [(b"MULTI",)]
        for change in self.changes:
            before = len(commands)
            commands += change.in_transaction()
            self._sizes.append(len(commands) - before)
        commands.append((b"EXEC",))
        return commands

    def receive(self) -> None:
        """Hear the answers. The lease can be used again if it is certain that it was there to be watched again."""
        if self._lease is None:
            return
        self._answers = self.connection.receive()
        if any(answer is None or isinstance(answer, Exception) for answer in self._answers):
            return
        lease = self._lease.renewed(self._lease_seconds, self._sent_at) if self._renews else self._lease
        if time.monotonic() < lease.lasts_until:
            self.connection.lease = lease

    def is_done(self) -> bool:
        """Whether all changes were made; False if they have to be made again. Raise if the server refuses them."""
        if not self._answers:
            return False
        answers = self._answers[: self._sent]
        if not self._by_script:
            done = answers.pop()
            if done is None:
                return False
            answers += done if isinstance(done, list) else [done]
        if not self._went_well(answers):
            return False
        if self._by_script:
            for change, answer in zip(self.changes, answers, strict=True):
                change.answer = answer
        if self._options.replicas or self._options.aof:
            check_confirmed(self.node.address, self._options, self._answers[self._sent])
        return True

    def follow_ups(self) -> Iterator[Change]:
        """What has to be done as well, as the answers show."""
        if self._by_script:
            return
        done = self._answers[self._sent - 1]
        start = 0
        for change, size in zip(self.changes, self._sizes, strict=True):
            if follow_up := change.follow_up(done[start : start + size]):
                yield follow_up
            start += size

    def settle(self, error: exceptions.RedisError) -> bool:
        """See to it that what may still be on its way is not carried out any more.

        Without its lease it is not. So the lease is taken away, which gives True: then it can be sent again at once. If
        the server cannot be reached or does not do that, or has not answered for so long that nothing is won by trying,
        the lease expires.
        """
        lease = self._lease
        if lease is None:
            return True
        while not isinstance(error, exceptions.TimeoutError) and time.monotonic() < lease.gone_at:
            try:
                with self.node.connection() as other:
                    (answer,) = other.call([(b"DEL", lease.name)])
                if not isinstance(answer, Exception) or code_of(answer) in _LEASE_LEFT:
                    return True
            except exceptions.BusyLoadingError:
                return False  # the server that was to do it is no more: this one has just started
            except (exceptions.RedisError, Unavailable):
                pass
            time.sleep(_PAUSE)
        time.sleep(max(0.0, lease.gone_at - time.monotonic()))
        return False


def _is_small(some: Sequence[Change]) -> bool:
    """Whether a script does it with less effort than a transaction."""
    nbytes = 0
    for change in some:
        nbytes += change.nbytes
        if change.head or change.untidied:
            return False
    return len(some) <= _BY_SCRIPT_CHANGES and nbytes <= _BY_SCRIPT_BYTES


def confirming(options: RedisOptions) -> Command:
    """What changes are followed by when the server's own answer is not enough."""
    wait_for = b"%d" % (options.timeout * 800)  # milliseconds; the answer must come before we stop listening
    if options.aof:
        return b"WAITAOF", b"1", b"%d" % options.replicas, wait_for
    return b"WAIT", b"%d" % options.replicas, wait_for


def check_confirmed(address: Address, options: RedisOptions, answer: Any) -> None:
    """Raise `Unavailable` unless *answer*, to what `confirming` gave, says that enough have it."""
    if isinstance(answer, Exception):
        raise explain(address, answer) from answer
    wanted = [1, options.replicas] if options.aof else [options.replicas]
    counted = answer if isinstance(answer, list) else [answer]
    if any(count < number for count, number in zip(counted, wanted, strict=True)):
        raise Unavailable(
            f"{address}: made the write, but not enough replicas or append-only files have it "
            f"({counted} instead of {wanted}): look at them"
        )
