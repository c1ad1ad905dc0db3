"""The core of an operator without I/O, against a model: kills at any moment, blocks by any policy, two inputs.

The reference is the failure-free run over the order in which the inputs were taken. The outputs that were released,
each number once, must be its outputs.
"""

import os
from random import Random

import pytest

from safekeeper import Diverged
from safekeeper.journal import Block, Image
from safekeeper.keeper.serializers import serializer_named
from safekeeper.operators.core import Core
from safekeeper.operators.replay import EventReplay
from safekeeper.policy import Changed, Choice, Eventual, Every

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
SEEDS = range(1_000 if LONG else 150)
EVENTS, WINDOW, KEYS = 120, 3, 5
NEW = list  # what makes the states of parts


class AnyTime:
    """Captures when it likes, and what it likes."""

    fuzzy = True

    def __init__(self, random):
        self.random = random

    def due(self, view):
        return None if self.random.random() < 0.7 else self.some(view)

    def some(self, view):
        while self.random.random() < 0.5:
            key = view.oldest_record() if self.random.random() < 0.5 else view.oldest_change()
            if key is None:
                return
            yield key


class Sometimes:
    """All that has changed, or all there is, at random."""

    fuzzy = False

    def __init__(self, random):
        self.random = random

    def due(self, view):
        return None if self.random.random() < 0.7 else self.random.choice(list(Choice))


def policy(random):
    if random.random() < 0.25:
        return Sometimes(random)
    if random.random() < 0.25:
        return Changed(Every(events=random.randint(1, 9)))
    if random.random() < 0.3:
        return Eventual(q=random.choice([1.0, 2.0]), u=random.choice([None, 5]), budget=0.001, period=0.001)
    return AnyTime(random)


def apply(core, source, position, values):
    """Windows of three, an average each, over events of both inputs; the key is in the value."""
    core.begin(source, position)
    value = values[position - 1]
    part = core.part(b"%d" % (value % KEYS), NEW)
    part.state.append((value if source == "a" else value * 3) % 1000)
    if len(part.state) == 1:
        core.emit("opened", b"%d" % value)
    if len(part.state) == WINDOW:
        core.emit("windows", b"%d of %d" % (sum(part.state), value % KEYS), part.key)
        part.close()
    core.commit()


def fail(core, source, position, random):
    """An event that does whatever it likes and then raises; it is put back, and comes again."""
    core.begin(source, position)
    part = core.part(b"%d" % random.randrange(KEYS), NEW)
    for _ in range(random.randrange(4)):
        match random.randrange(4):
            case 0:
                part.state.append(random.randrange(1000))
            case 1:
                part.state = NEW()
            case 2:
                core.emit("windows", b"never to be seen")
            case 3:
                part.close()
                part = core.part(part.key, NEW)
    core.abort()
    core.skip()


class Run:
    """An operator that is killed now and then, and its journal: the blocks that were stored."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.inputs = {name: [self.random.randrange(1000) for _ in range(EVENTS)] for name in "ab"}
        self.taken = []
        """The order of the events that are in the journal or were taken since; the recorded one after each kill."""
        self.stored = []
        self.sent = {"windows": {}, "opened": {}}
        self.start()

    def core(self):
        undo = self.undo = self.random.random() < 0.5
        return Core(policy(self.random), serializer_named("msgpack"), self.sent, linger=0.0, undo=undo)

    def apply(self, source):
        core = self.operator
        position = core.positions.get(source, 0) + 1
        while self.undo and core.replay is None and self.random.random() < 0.2:
            fail(core, source, position, self.random)
        apply(core, source, position, self.inputs[source])

    def start(self):
        self.operator = core = self.core()
        image = Image()
        for number, data in self.stored:
            image.paste(number, Block.decode(data))
        image.check()
        core.restore(image)
        del self.taken[image.at.events :]
        self.send(self.number)
        while core.replay is not None:
            self.apply(core.replay.expects)

    def step(self):
        core = self.operator
        ready = [name for name in "ab" if core.positions.get(name, 0) < EVENTS]
        if not ready:
            return False
        source = self.random.choice(ready)
        self.apply(source)
        self.taken.append(source)
        if (block := core.capture(self.number + 1)) is not None:
            self.store(block)
        return True

    @property
    def number(self):
        return self.stored[-1][0] if self.stored else 0

    def store(self, block):
        number = self.number + 1
        data = block.encode()
        if self.random.random() < 0.05:  # killed before it is stored
            self.start()
            return
        self.stored.append((number, data))
        if self.random.random() < 0.05:  # killed before it is acknowledged
            self.start()
            return
        self.stored = [(n, d) for n, d in self.stored if n >= block.oldest]
        self.send(number)

    def send(self, number):
        for stream, outputs in self.operator.release(number):
            for at, body in enumerate(outputs.bodies):
                self.sent[stream].setdefault(outputs.first + at, body)
            if self.random.random() < 0.8:
                self.operator.confirm(stream, outputs.last)

    def play(self):
        while self.step():
            if self.random.random() < 0.04:
                self.start()
        if (block := self.operator.capture(self.number + 1, now=True)) is not None:
            self.stored.append((self.number + 1, block.encode()))
            self.send(self.number)
        return {stream: [sent[number] for number in sorted(sent)] for stream, sent in self.sent.items()}

    def reference(self):
        core = Core(Changed(Every(events=1)), serializer_named("msgpack"), self.sent)
        for source in self.taken:
            apply(core, source, core.positions.get(source, 0) + 1, self.inputs[source])
        return {stream: emitted.bodies for stream, emitted in core.streams.items()}


def wrong(seeds):
    """How many of these runs do not give what they should."""
    count = 0
    for seed in seeds:
        run = Run(seed)
        try:
            count += run.play() != run.reference()
        except Diverged:
            count += 1
    return count


@pytest.mark.crash
def test_the_outputs_are_those_of_the_failure_free_run_over_the_recorded_order():
    for seed in SEEDS:
        run = Run(seed)
        assert run.play() == run.reference(), f"seed {seed}"


def test_without_tombstones_it_would_be_found_out(monkeypatch):
    def recorded_at(image, key):
        number = image.extent.recorded.get(key)
        return 0 if number is None else image.extent.events_at(number)

    def covers(replay, key, event):  # as the paper has it: what has no record is opened
        covered = recorded_at(replay._image, key)
        replay._ignored = covered >= event
        return replay._ignored

    monkeypatch.setattr(EventReplay, "covers", covers)
    monkeypatch.setattr(EventReplay, "close", lambda *args: None)
    monkeypatch.setattr(EventReplay, "emit", lambda *args: None)
    assert wrong(range(40)) > 10


def test_without_the_order_it_would_be_found_out(monkeypatch):
    def order(image):
        counts = {}
        for source, count in recorded(image):
            counts[source] = counts.get(source, 0) + count
        return iter(sorted(counts.items()))

    recorded = Image.order
    monkeypatch.setattr(Image, "order", order)
    assert wrong(range(40)) > 10


def test_comparing_as_the_paper_does_would_be_found_out(monkeypatch):
    """Its "below t_i" takes the last event of a record twice."""
    right = EventReplay.covers
    monkeypatch.setattr(EventReplay, "covers", lambda replay, key, event: right(replay, key, event + 1))
    assert wrong(range(40)) > 10
