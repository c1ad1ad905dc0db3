"""Writers whose server is killed under them, and what their ids hold when it is back."""

import random
import threading
import time

from safekeeper import Batch, CheckpointId, SafekeeperError, Unavailable


class Writer:
    """Writes 1, 2, 3, ... to an id of its own; every so often as a value that the store has to split."""

    def __init__(self, number, *, large_bytes, large_every):
        self.id = CheckpointId(f"group{number % 2}", b"%d" % number)
        self.tried = self.acknowledged = 0
        self._large_bytes, self._large_every = large_bytes, large_every

    def write_until_it_fails(self, store):
        try:
            while True:
                self.tried += 1
                size = 1000 if self.tried % self._large_every else self._large_bytes
                store.write(Batch({self.id: b"%d".ljust(size) % self.tried}))
                self.acknowledged = self.tried
        except SafekeeperError:
            pass


def kill_in_the_middle(server, store, writers):
    """Let all writers write, kill the server under them, and start it again."""
    threads = [threading.Thread(target=writer.write_until_it_fails, args=[store]) for writer in writers]
    before = sum(writer.acknowledged for writer in writers)
    for thread in threads:
        thread.start()
    while sum(writer.acknowledged for writer in writers) < before + 20 and any(thread.is_alive() for thread in threads):
        time.sleep(0.001)  # on a slow machine they may give up by themselves
    time.sleep(random.uniform(0, 0.3))
    server.kill()
    for thread in threads:
        thread.join()
    server.start()


def numbers(store, writers):
    """What each writer's id holds; 0 if nothing. The listings must agree with that."""
    values = store.read([writer.id for writer in writers])
    there = {writer.id for writer, value in zip(writers, values, strict=True) if value is not None}
    assert {CheckpointId(group, key) for group in store.groups() for key in store.keys(group)} == there
    return [int(value or b"0") for value in values]


def when_it_works(call):
    """What *call* returns, as soon as it does: a handle needs no help to go on."""
    give_up = time.monotonic() + 120
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < give_up, "the server is back, but the handle does not go on"
            time.sleep(0.02)
