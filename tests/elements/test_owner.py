"""A group belongs to one process at a time: nothing that was acknowledged is lost, whoever comes back whenever."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import safekeeper
from safekeeper import (
    Batch,
    Checkpointed,
    CheckpointId,
    Closed,
    Conflict,
    Every,
    SafeKeeper,
    Scope,
    Unavailable,
    claims,
    places,
)
from safekeeper.backends.memory import MemoryBackend
from safekeeper.dev.redis import RedisServer
from safekeeper.elements import life, owner
from safekeeper.testing import Faulty

from ..unruly import Turns, UnrulyStore

KEY = b"foo"
NODE = Path(__file__).with_name("owner_node.py")
LIMIT = 60
LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def words(keeper, **settings):
    return Checkpointed(keeper, "words", lambda: {"count": 0}, tick=0.01, **settings)


def count(group, key=KEY, times=1):
    for _ in range(times):
        with group.event(key) as element:
            element.state["count"] += 1
        element.ticket.result(LIMIT)
    return element.state["count"]


def stored(store, key=KEY):
    """What the next owner finds."""
    with SafeKeeper(Open(store)) as keeper, words(keeper, owner="take") as group, group.look(key) as state:
        return state["count"]


class Open(Faulty):
    """A handle of its own to a store that several have."""

    def close(self):
        self._open = False


@pytest.fixture
def memory():
    with MemoryBackend() as store:
        yield store


@pytest.fixture
def here(memory):
    with SafeKeeper(Open(memory)) as keeper:
        yield keeper


@pytest.fixture
def there(memory):
    with SafeKeeper(Open(memory)) as keeper:
        yield keeper


class TestModes:
    def test_a_second_one_fails_and_says_whose_it_is_and_what_to_do(self, here, there):
        with words(here) as group:
            count(group)
            with pytest.raises(Conflict, match=rf"words belongs to process {os.getpid()} on .*owner='wait'"):
                words(there).claim()
            with pytest.raises(Conflict, match="words belongs to"):
                count(words(there))
            assert count(group) == 2

    def test_also_in_the_same_keeper(self, here):
        with words(here), pytest.raises(Conflict, match="words belongs to"):
            words(here).claim()

    def test_the_next_one_goes_on_where_the_first_has_closed_and_copies_nothing(self, here, there):
        for n, keeper in enumerate((here, there, here), 1):
            with words(keeper) as group:
                assert count(group) == n
        assert here.fetch(CheckpointId("words", KEY)) == {"count": 3}

    def test_one_that_waits_gets_it_when_the_first_closes(self, here, there, eventually):
        group, waiting, counts = words(here), words(there, owner="wait"), []
        count(group, times=3)
        thread = threading.Thread(target=lambda: counts.append(count(waiting)))
        thread.start()
        time.sleep(0.1)
        assert not counts
        count(group)
        group.close()
        thread.join(LIMIT)
        assert counts == [5]
        waiting.close()

    def test_waiting_ends_after_a_time_or_when_it_is_closed(self, here, there, eventually):
        with words(here):
            waiting = words(there, owner="wait")
            with pytest.raises(Conflict, match="words still belongs to process"):
                waiting.claim(timeout=0.05)
            errors = []

            def claim():
                try:
                    waiting.claim()
                except Closed as error:
                    errors.append(error)

            threads = [threading.Thread(target=claim) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            waiting.close()
            for thread in threads:
                thread.join(LIMIT)
            assert len(errors) == 3

    def test_waiting_goes_on_while_the_store_does_not_answer(self, here, there):
        group = words(here)
        group.claim()
        waiting = words(there, owner="wait")
        there.backend.fail("keys", times=2)
        thread = threading.Thread(target=waiting.claim)
        thread.start()
        group.close()
        thread.join(LIMIT)
        assert count(waiting) == 1
        waiting.close()

    def test_taking_it_ends_the_first(self, here, there):
        group = words(here)
        count(group, times=3)
        with words(there, owner="take") as other:
            assert count(other) == 4
            with pytest.raises(Conflict, match="words was taken by process"):
                count(group)
            assert count(other) == 5
            for use in (lambda: group.event(KEY), lambda: group.look(KEY)):
                with pytest.raises(Conflict, match="words was taken by"), use():
                    pass
            with pytest.raises(Conflict, match="words was taken by"):
                group.forget(KEY)
            with pytest.raises(Conflict, match="1 element is not stored: words/foo"):
                group.close()
        assert group.metrics().owned == 0

    def test_those_who_wait_together_do_not_take_it_from_each_other(self, memory, here):
        """All of them see at once that it is free; one gets it, and the others go on waiting."""
        group = words(here)
        count(group)
        keepers = [SafeKeeper(Open(memory)) for _ in range(5)]
        waiting = [words(keeper, owner="wait") for keeper in keepers]
        got, errors = [], []

        def follow(elements):
            try:
                elements.claim()
                got.append(elements)
                for _ in range(3):
                    count(elements)
                elements.close()
            except Conflict as error:
                errors.append(error)

        threads = [threading.Thread(target=follow, args=(elements,)) for elements in waiting]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        group.close()
        for thread in threads:
            thread.join(LIMIT)
        assert len(got) == 5
        assert not errors
        for keeper in keepers:
            keeper.close()
        assert stored(memory) == 16

    def test_one_who_finds_that_another_was_quicker_leaves_it_alone(self, memory, here, monkeypatch):
        """Between the look at who has it and the claim."""
        waiting = words(here, owner="wait", patience=LIMIT)
        wait, others = owner.Ownership._wait, []

        def look_and_be_late(ownership, until):
            holder = wait(ownership, until)
            if not others:
                others.append(claims.take(memory, "words", **life.SignOfLife().about))
            return holder

        monkeypatch.setattr(owner.Ownership, "_wait", look_and_be_late)
        with pytest.raises(Conflict, match="still belongs to"):
            waiting.claim(timeout=0.3)
        others[0].check()

    def test_an_idle_one_finds_out_by_itself(self, here, there, eventually):
        group = words(here, patience=0.1)
        count(group)
        with words(there, owner="take"):
            eventually(lambda: group.metrics().owned == 0)
            group.close()

    def test_in_an_event_loop_nobody_is_kept_waiting(self, here, there):
        async def main():
            async with words(here) as group:
                async with group.event(KEY) as element:
                    element.state["count"] += 1
                await element.ticket
                waiting = words(there, owner="wait")
                task = asyncio.create_task(self.count_in_loop(waiting))
                for _ in range(20):
                    await asyncio.sleep(0.002)
                assert not task.done()
                cancelled = asyncio.create_task(waiting.aclaim())
                await asyncio.sleep(0)
                cancelled.cancel()
            assert await task == 2
            await waiting.aclose()

        asyncio.run(asyncio.wait_for(main(), LIMIT))

    async def count_in_loop(self, group):
        async with group.event(KEY) as element:
            element.state["count"] += 1
        await element.ticket
        return element.state["count"]

    def test_one_that_was_closed_does_nothing_more(self, here):
        group = words(here)
        count(group)
        group.close()
        with pytest.raises(Closed, match="were closed: make new ones"):
            count(group)
        group.close()

    def test_bad_settings_are_refused(self, here):
        with pytest.raises(ValueError, match="owner= is one of 'fail', 'wait', 'take', or None, not 'both'"):
            words(here, owner="both")
        with pytest.raises(ValueError, match="patience= is more than 0 s"):
            words(here, patience=0)

    def test_what_was_stored_without_an_owner_is_there(self, here, there):
        here.save(CheckpointId("words", KEY), {"count": 41}).result()
        with words(there) as group:
            assert count(group) == 42


class TestGone:
    def test_one_that_is_silent_is_taken_to_be_gone(self, here, there, monkeypatch):
        group = words(here, patience=0.2)
        count(group, times=3)
        monkeypatch.setattr(claims.Claim, "beat", lambda claim, number: None)
        with words(there, owner="wait", patience=0.2) as other:
            assert count(other) == 4
            with pytest.raises(Conflict):
                count(group)
        with suppress(Conflict):  # if that event was let in
            group.close()

    def test_one_that_beats_is_not(self, here, there, monkeypatch):
        """Also if nothing else is known of it."""
        monkeypatch.setattr(owner, "look", lambda about: life.Life.UNKNOWN)
        with words(here, patience=0.5) as group:
            count(group)
            with pytest.raises(Conflict, match="words belongs to"):
                words(there, patience=LIMIT).claim()
            with pytest.raises(Conflict, match="words still belongs to"):
                words(there, owner="wait", patience=LIMIT).claim(timeout=1)
            count(group)

    def test_a_lock_is_seen_by_others_until_it_ends(self):
        sign = life.SignOfLife()
        assert life.look(sign.about) is life.Life.HERE
        about = dict(sign.about)
        sign.end()
        assert life.look(about) is life.Life.UNKNOWN, "the file is gone"
        assert life.look({**about, "boot": "another"}) is life.Life.EARLIER
        assert life.look({}) is life.Life.EARLIER

    def test_a_process_has_one_file_however_many_groups_it_owns(self, here):
        with words(here) as group:
            group.claim()
            open_files = len(os.listdir("/proc/self/fd"))
            about = life.of_this_process()
            assert life.look(about) is life.Life.HERE
            assert life.of_this_process() is about
            assert len(os.listdir("/proc/self/fd")) <= open_files + 1  # the folder that is listed
        assert life.look(about) is life.Life.HERE, "as long as the process runs"

    def test_another_file_at_its_place_says_nothing(self):
        sign = life.SignOfLife()
        path = Path(sign.about["lock"])
        path.unlink()
        path.touch()
        assert life.look(sign.about) is life.Life.UNKNOWN
        sign.end()

    def test_a_folder_that_cannot_be_used_leaves_only_the_beat(self, monkeypatch, here):
        monkeypatch.setattr(life.tempfile, "gettempdir", lambda: "/proc/nowhere")
        assert "lock" not in life.SignOfLife().about
        with words(here) as group:
            count(group)


class TestLateWrites:
    """A save that was under way when the group was taken comes late, and must not replace what was saved since."""

    def attack(self, memory, eventually) -> int:
        first, second = Open(memory), Open(memory)
        with SafeKeeper(first) as here, SafeKeeper(second) as there:
            group = words(here)
            count(group, times=3)
            with first.hold("write") as gate:
                with group.event(KEY) as element:
                    element.state["count"] = 1000
                gate.wait_for(1)
                with words(there, owner="take") as other:
                    assert count(other, times=5) == 8
            with pytest.raises(Conflict):
                element.ticket.result(LIMIT)
            with pytest.raises(Conflict):
                group.close()
        return stored(memory)

    def test_it_does_not(self, memory, eventually):
        assert self.attack(memory, eventually) == 8

    def test_without_a_place_of_its_own_it_would(self, memory, eventually, monkeypatch):
        monkeypatch.setattr(places, "copy", places.inherit)
        assert self.attack(memory, eventually) == 1000

    def test_also_if_owners_end_while_they_copy(self, memory):
        """Each at another write of its, and the first one's late write comes at the end."""
        first = Open(memory)
        with SafeKeeper(first) as here:
            group = words(here)
            for n in range(20):
                count(group, b"%d" % n)
            with first.hold("write") as gate:
                with group.event(b"0") as element:
                    element.state["count"] = 1000
                gate.wait_for(1)
                for writes in range(12):
                    broken = Open(memory)
                    broken.fail("write", skip=writes, times=1000)
                    with SafeKeeper(broken) as keeper:
                        other = words(keeper, owner="take")
                        try:
                            other.claim()
                        except Unavailable:
                            continue
                        break
                else:
                    pytest.fail("it never came so far")
                assert writes > 2
                with SafeKeeper(Open(memory)) as keeper, words(keeper, owner="take") as last:
                    assert [count(last, b"%d" % n) for n in range(20)] == [2] * 20
            with pytest.raises(Conflict):
                element.ticket.result(LIMIT)
        assert [stored(memory, b"%d" % n) for n in range(20)] == [2] * 20

    def test_an_owner_that_ended_before_it_had_a_place_hands_on_no_certainty(self, memory, monkeypatch):
        """It had not copied yet what it took from one that may still write, so the next one must."""
        first = Open(memory)
        with SafeKeeper(first) as here:
            group = words(here)
            count(group, times=3)
            with first.hold("write") as gate:
                with group.event(KEY) as element:
                    element.state["count"] = 1000
                gate.wait_for(1)
                claims.take(memory, "words", boot="earlier").release(quiet=True)
                with SafeKeeper(Open(memory)) as keeper, words(keeper) as last:
                    assert count(last) == 4
            assert isinstance(element.ticket.outcome(LIMIT), Conflict)
        assert stored(memory) == 4

    def test_what_is_not_needed_any_more_goes(self, memory, eventually):
        with SafeKeeper(Open(memory)) as here, SafeKeeper(Open(memory)) as there:
            group = words(here)
            count(group)
            other = words(there, owner="take", patience=0.05)
            count(other)
            eventually(lambda: len(set(memory.groups())) == 3)
            (place,) = set(memory.groups()) - {"words.claims", "words.places"}
            assert places.current(memory, "words") == place
            other.close()
            group.close()

    def test_large_states_are_copied_whole(self, memory):
        with SafeKeeper(Open(memory)) as here, SafeKeeper(Open(memory)) as there:
            group = Checkpointed(here, "words", lambda: b"x" * (65 << 20))
            with group.event(KEY) as element:
                pass
            element.ticket.result(LIMIT)
            with Checkpointed(there, "words", lambda: b"", owner="take") as other, other.look(KEY) as state:
                assert state == b"x" * (65 << 20)

    def test_a_save_without_an_answer_is_not_quiet(self, here, there):
        """It may still happen after its owner has closed."""
        group = words(here, trigger=Every(events=1000))
        count_only(group)
        here.backend.fail("write", when="after", error=Conflict("no answer"))
        with pytest.raises(Conflict):
            group.close()
        count_only(group)
        here.backend.fail("write", when="after", error=None)
        group.close()
        holder = claims.holder(here.backend, "words")
        assert holder.done
        assert holder.quiet, "a later write of the same id has returned"


def count_only(group, key=KEY):
    with group.event(key) as element:
        element.state["count"] += 1


class TestReadsAfterALoss:
    """An owner is stopped before it reads; its successor has copied the elements and removed them where they were."""

    @pytest.fixture
    def lost(self, here, there, monkeypatch):
        monkeypatch.setattr(owner.Ownership, "_be_at_work", lambda self: None)
        with words(here) as group:
            count(group, times=3)
        group = words(here)
        group.claim()
        self.take(there)
        yield group
        group.close()

    def take(self, keeper):
        with words(keeper, owner="take") as other:
            guard = other._ownership.guard
            places.clean(keeper.backend, guard.claim, guard.groups[0])

    def test_it_does_not_say_that_there_is_nothing(self, lost):
        with pytest.raises(Conflict, match="words was taken by"), lost.look(KEY):
            pass

    def test_it_does_not_begin_anew(self, lost):
        with pytest.raises(Conflict, match="words was taken by"), lost.event(KEY):
            pass

    def test_it_does_not_recover_a_part(self, lost):
        with pytest.raises(Conflict, match="words was taken by"):
            lost.recover()

    def test_a_claim_that_cannot_be_asked_for_is_unavailable_or_blank(self, here, monkeypatch):
        for settings in ({}, {"unavailable": "blank"}):
            with words(here, **settings) as group:
                here.backend.fail("read", skip=1)
                if settings:
                    count(group)
                else:
                    with pytest.raises(Unavailable), group.look(KEY):
                        pass

    def test_who_reads_without_a_claim_is_told(self, here, there):
        with words(here) as group:
            for n in range(600):
                count_only(group, b"%d" % n)
            group.checkpoint()
        found = here.recover("words")
        keys = here.keys("words")
        next(found), next(keys)
        claims.take(there.backend, "words").release()
        self.take(there)
        for rest in (found, keys):
            with pytest.raises(Unavailable, match=r"elements of words were moved to words\.owned\..* read them again"):
                list(rest)
        assert len(dict(here.recover("words"))) == len(list(here.keys("words"))) == 600


class TestWhoeverLooksForAGroup:
    """finds its elements where the owner has them now."""

    @pytest.fixture
    def url(self, tmp_path):
        """A store whose group `words` was taken from an owner that lives: its elements were copied."""
        url = f"log://{tmp_path}/store"
        with SafeKeeper(url) as here, SafeKeeper(url) as there:
            group = words(here)
            for key in ("foo", "bar", "baz"):
                count(group, key)
            with words(there, owner="take") as taken:
                assert count(taken, "foo") == 2
                taken.forget("baz").result(LIMIT)
                here.save(CheckpointId("words", "late"), {"count": -1})  # by one that has lost it
                with suppress(Conflict):
                    group.close()
        with safekeeper.open(url) as store:
            assert places.current(store, "words") != "words"
        return url

    def test_by_keys_and_recover(self, url):
        with SafeKeeper(url) as keeper:
            assert sorted(keeper.keys("words")) == [b"bar", b"foo"]
            assert list(keeper.keys("words", prefix="f")) == [b"foo"]
            assert dict(keeper.recover("words")) == {b"bar": {"count": 1}, b"foo": {"count": 2}}

    def test_forgets_every_place_of_it_and_the_owner_goes_on(self, url):
        with SafeKeeper(url) as keeper, words(keeper) as group:
            # one that ended while it copied has left something, too
            orphan = CheckpointId("words.owned.7_0123456789abcdef", b"foo")
            other = CheckpointId("words.owned.by.others", b"foo")
            keeper.backend.write(Batch({orphan: b"", other: b""}))
            assert keeper.forget_group("words") == 2
            assert sorted(keeper.backend.groups()) == ["words.claims", "words.owned.by.others", "words.places"]
            assert list(keeper.keys("words")) == []
            assert count(group, "new") == 1
            assert list(keeper.keys("words")) == [b"new"]

    def test_a_group_whose_name_is_too_long_for_an_owner_is_found_as_it_is(self, tmp_path):
        name = "x" * 255
        with SafeKeeper(f"log://{tmp_path}/store") as keeper:
            keeper.save(CheckpointId(name, "foo"), [1]).result(LIMIT)
            assert list(keeper.keys(name)) == [b"foo"]
            assert keeper.forget_group(name) == 1

    def test_on_the_command_line(self, url, tmp_path):
        def run(*arguments, **options):
            command = [sys.executable, "-m", "safekeeper.cli", *arguments]
            return subprocess.run(command, capture_output=True, check=True, timeout=LIMIT, **options).stdout

        assert sorted(run("ls", url, "words").split()) == [b"bar", b"foo"]
        assert json.loads(run("get", url, "words", "foo", "--decode")) == {"count": 2}
        run("put", url, "words", "foo", "--encode", input=b'{"count": 7}')
        run("rm", url, "words", "bar")
        copied = f"log://{tmp_path}/copied"
        run("copy", url, copied, "--group", "words")
        for there in (url, copied):
            with SafeKeeper(there) as keeper, words(keeper) as group:
                assert dict(keeper.recover("words")) == {b"foo": {"count": 7}}
                with group.look("foo") as state:
                    assert state == {"count": 7}


class TestManyOrders:
    """The real code of owners and places on a store that is as unruly as the contract allows, in random orders."""

    @pytest.mark.parametrize("seed", range(2_000 if LONG else 150))
    def test_what_is_acknowledged_is_found_by_whoever_takes_over(self, seed, monkeypatch):
        self.play(seed, monkeypatch)

    def test_it_would_be_found_out(self, monkeypatch):
        monkeypatch.setattr(owner.Ownership, "_is_certain", lambda self, holder, claim: True)
        with pytest.raises(AssertionError, match="lost"):
            self.play_all(range(500), monkeypatch)

    def play_all(self, seeds, monkeypatch):
        for seed in seeds:
            self.play(seed, monkeypatch)

    def play(self, seed, monkeypatch):
        monkeypatch.setattr(owner.Ownership, "_be_at_work", lambda self: None)
        monkeypatch.setattr(owner, "look", lambda about: life.Life.UNKNOWN)
        monkeypatch.setattr(owner, "_LOOK", 0.0)
        random = Random(seed)
        turns = Turns(random)
        store = UnrulyStore(random, turns)
        acknowledged, found = [], []

        def own(name: int) -> None:
            ownership = owner.Ownership(Bare(store), "words", "take", 10)
            ownership._try(claims.holder(store, "words"))
            if ownership.guard is None:
                return
            claim, place = ownership.guard.claim, ownership.guard.groups[0]
            id = CheckpointId(place, KEY)
            value = (store.read([id])[0] or b"").split()
            if not value:
                ownership.confirm()
            found.append((claim.mark, list(value)))
            for n in range(3):
                value.append(b"%d-%d-%d" % (claim.mark.epoch, name, n))
                store.write(Batch({id: b" ".join(value)}))
                claim.check()
                acknowledged.append((claim.mark, value[-1]))
                if n == 0 and random.random() < 0.5:
                    places.clean(store, claim, place)
            ownership.release()

        def own_safely(name):
            def run():
                for _ in range(random.randrange(40)):  # not all at once
                    turns.wait()
                for _ in range(3):
                    with suppress(Conflict):
                        own(name)

            return run

        turns.run(*(own_safely(name) for name in range(3)))
        for mark, seen in found:
            lost = [event for by, event in acknowledged if by < mark and event not in seen]
            assert not lost, f"seed {seed}: lost {lost}"
            used = [event for by, earlier in found if by < mark for event in earlier if event not in seen]
            assert not used, f"seed {seed}: an owner has used {used}, which its successor did not find"
        records = {id.key: value for id, value in store.values.items() if id.group == "words.places"}
        last = store.values.get(CheckpointId(records[max(records)].decode(), KEY), b"").split() if records else []
        lost = [event for _, event in acknowledged if event not in last]
        assert not lost, f"seed {seed}: lost {lost}"


class Bare:
    """As much of a keeper as an owner needs."""

    closed = False

    def __init__(self, backend):
        self.backend = backend

    def guard(self, claim, *groups):
        from safekeeper.keeper.guards import Guards

        return Guards().add(claim, groups)


# Processes


class Node:
    """A process of `owner_node.py`, and what it has acknowledged."""

    def __init__(self, url, mode="fail", patience=10.0, keys=3):
        self.process = subprocess.Popen(
            [sys.executable, str(NODE), url, mode, str(patience), str(keys)], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())

    @property
    def acknowledged(self):
        return Counter(line[1:] for line in list(self.lines) if line.startswith("+"))

    def is_ready(self):
        return self.acknowledged.total() >= 5 or self.process.poll() is not None

    def wait_for(self, condition):
        until = time.monotonic() + LIMIT
        while not condition(self):
            assert time.monotonic() < until, self.lines[-3:]
            assert self.process.poll() is None or condition(self), self.lines[-3:]
            time.sleep(0.005)

    def wait_for_events(self, number):
        before = self.acknowledged.total()
        self.wait_for(lambda node: node.acknowledged.total() >= before + number)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.fixture
def start():
    nodes = []

    def start(*args, **named):
        nodes.append(Node(*args, **named))
        return nodes[-1]

    yield start
    for node in nodes:
        node.end()


def total(url):
    with SafeKeeper(url) as keeper, Checkpointed(keeper, "words", lambda: 0, owner="take") as elements:
        elements.recover()
        counts = {}
        for key in list(elements._memory.elements):
            with elements.look(key) as state:
                counts[key.decode()] = state
        return Counter(counts)


@pytest.mark.crash
@pytest.mark.parametrize("scheme", ("log", "lmdb", "file"))
def test_a_killed_owner_is_followed_at_once_by_one_that_waits(scheme, tmp_path, start, long_form):
    url = f"{scheme}://{tmp_path}/store"
    nodes = [start(url, patience=1000)]
    nodes[0].wait_for_events(5)
    for _ in range(20 if long_form else 2):
        nodes.append(start(url, "wait", patience=1000))
        nodes[-2].wait_for_events(5)
        assert not nodes[-1].lines
        nodes[-2].end()
        nodes[-1].wait_for_events(5)
    nodes[-1].end()
    acknowledged = sum((node.acknowledged for node in nodes), Counter())
    counted = total(url)
    assert counted >= acknowledged
    assert counted.total() <= acknowledged.total() + len(nodes), "at most one event of each was not acknowledged"


@pytest.mark.crash
def test_after_a_kill_on_a_store_of_the_network_the_elements_are_copied(tmp_path, start, long_form):
    """What the killed one has sent may still be on its way; nobody waits for longer than that takes."""
    with RedisServer(tmp_path / "redis", appendonly="yes", appendfsync="always") as server:
        nodes = [start(server.url)]
        for _ in range(20 if long_form else 2):
            nodes[-1].wait_for_events(5)
            nodes.append(start(server.url, "wait", patience=1000))
            nodes[-2].wait_for_events(5)
            nodes[-2].end()
        nodes[-1].wait_for_events(5)
        nodes[-1].end()
        acknowledged = sum((node.acknowledged for node in nodes), Counter())
        with SafeKeeper(server.url) as keeper:
            assert places.current(keeper.backend, "words").startswith("words.owned.")
        counted = total(server.url)
    assert counted >= acknowledged
    assert counted.total() <= acknowledged.total() + len(nodes)


@pytest.mark.crash
@pytest.mark.parametrize("scheme", ("log", "lmdb", "file"))
def test_a_stopped_owner_that_comes_back_gets_a_conflict_and_acknowledges_nothing(scheme, tmp_path, start, long_form):
    """Stopped anywhere, also in the middle of a write."""
    url, dice = f"{scheme}://{tmp_path}/store", Random(scheme)
    nodes = [start(url)]
    for _ in range(15 if long_form else 3):
        stopped = nodes[-1]
        stopped.wait_for_events(5)
        time.sleep(dice.random() * 0.01)
        stopped.signal(signal.SIGSTOP)
        mode = dice.choice(("take", "wait"))
        if scheme == "lmdb":  # stopped in a transaction it keeps others from writing: then nobody can take it
            mode = "wait"
            stopped.signal(signal.SIGCONT)
            stopped.wait_for_events(1)
            nodes.append(start(url, "take"))
        else:
            nodes.append(start(url, mode, patience=1.0))
        nodes[-1].wait_for_events(5)
        before = stopped.acknowledged
        stopped.signal(signal.SIGCONT)
        stopped.wait_for(lambda node: "conflict" in node.lines)
        if scheme != "lmdb":
            late = stopped.acknowledged - before
            assert late.total() <= 1, "what was acknowledged before it was stopped, and printed after that"
        stopped.process.wait(LIMIT)
        nodes[-1].wait_for_events(3)
    nodes[-1].end()
    acknowledged = sum((node.acknowledged for node in nodes), Counter())
    counted = total(url)
    assert counted >= acknowledged
    assert counted.total() <= acknowledged.total() + len(nodes)


@pytest.mark.crash
def test_several_that_start_at_once_follow_each_other(tmp_path, start):
    """Nobody takes the group from one that is at work. Of two that begin in the same moment one may be told late."""
    url = f"log://{tmp_path}/store"
    nodes = [start(url, "wait", patience=1000) for _ in range(4)]
    waiting = list(nodes)
    while waiting:
        until = time.monotonic() + LIMIT
        while not (ready := [node for node in waiting if node.is_ready()]):
            assert time.monotonic() < until
            time.sleep(0.01)
        for node in ready:
            node.end()
            waiting.remove(node)
    acknowledged = sum((node.acknowledged for node in nodes), Counter())
    assert total(url) >= acknowledged


def test_scopes_are_what_the_rules_rely_on():
    assert Scope.PROCESS < Scope.HOST < Scope.NETWORK
