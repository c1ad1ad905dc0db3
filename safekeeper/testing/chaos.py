"""Harm to processes and links at random moments, that can be repeated: kill, stop, continue, replace, cut, delay.

    with Chaos() as chaos:                                     prints its seed; Chaos(seed=...) does the same again
        chaos.process("counter", lambda: subprocess.Popen([...]))
        chaos.link("counter to redis", proxy)                  a `safekeeper.testing.proxy.Proxy`
        chaos.run(until=lambda: everything_arrived())

What happens to a process:

    kill       SIGKILL; it is started again after a moment
    stop       SIGSTOP, and SIGCONT after a moment: a pause that it does not notice
    replace    SIGSTOP; another one is started, and the stopped one goes on beside it later, as somebody who was taken
               for dead: that is where two owners would show

What happens to a link: `cut` breaks its connections, `delay` makes everything take longer for a moment, `partition`
lets nothing through for a moment, and tells nobody.

A process that ends by itself is started again, as systemd would, unless it ended with exit code 0.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Protocol, Self, runtime_checkable

from safekeeper.testing.proxy import Proxy

DEEDS: Mapping[str, float] = {"kill": 3, "stop": 1, "replace": 1, "cut": 1, "delay": 1, "partition": 1}
"""What is done, and how often in proportion to the others."""
_TO_PROCESSES, _TO_LINKS = ("kill", "stop", "replace"), ("cut", "delay", "partition")
_PATIENCE = 120.0


@runtime_checkable
class _Popen(Protocol):
    """What is used of `subprocess.Popen`; a `multiprocessing.Process` has other words for the same."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Victim:
    """A process, and those that it has replaced and that are still there."""

    def __init__(self, name: str, start: Callable[[], Any]) -> None:
        self.name = name
        self._start = start
        self.starts = 0
        """How often it was started."""
        self.replaced: list[Any] = []
        """Those that were stopped and replaced, the oldest first."""
        self.process: Any = None
        self.start()

    def start(self) -> None:
        """Start it; whoever it was before is somebody else's business."""
        self.process = self._start()
        self.starts += 1

    def exit_code(self) -> int | None:
        """How it ended; None if it has not."""
        return _exit_code(self.process)

    def kill(self) -> None:
        """End it the hard way: it cannot finish anything."""
        _kill(self.process)

    def stop(self) -> None:
        """Let it stand still, wherever it is."""
        _signal(self.process, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after `stop`."""
        _signal(self.process, signal.SIGCONT)

    def replace(self) -> None:
        """Stop it and start another one, as somebody would who takes it for dead."""
        self.stop()
        self.replaced.append(self.process)
        self.start()

    def wake(self) -> None:
        """Let those that were replaced go on, beside whoever took their place."""
        for old in self.replaced:
            _signal(old, signal.SIGCONT)
        self.replaced = [old for old in self.replaced if _exit_code(old) is None]

    def close(self) -> None:
        """End everything."""
        for process in (self.process, *self.replaced):
            _kill(process)


class Chaos:
    """Does harm, at moments and to victims that follow from a seed. The seed is printed."""

    def __init__(
        self,
        *,
        seed: int | None = None,
        pause: tuple[float, float] = (0.02, 0.5),
        deeds: Mapping[str, float] = DEEDS,
        say: Callable[[str], object] = print,
    ) -> None:
        self.seed = secrets.randbits(32) if seed is None else seed
        self.random = Random(self.seed)  # noqa: S311 - it has to be repeatable
        self.pause = pause
        """Between which numbers of seconds there is peace; pauses and delays are as long."""
        self.done: Counter[str] = Counter()
        """What was done, how often."""
        self._deeds = dict(deeds)
        if unknown := set(deeds) - set(DEEDS):
            raise ValueError(f"there is no {min(unknown)}: there are {', '.join(DEEDS)}")
        self._victims: dict[str, Victim] = {}
        self._links: dict[str, Proxy] = {}
        self._say = say
        say(f"chaos: seed {self.seed}")

    def process(self, name: str, start: Callable[[], Any]) -> Victim:
        """Start a process that harm is done to. *start* gives a `Popen`, or a `multiprocessing.Process`."""
        self._victims[name] = victim = Victim(name, start)
        return victim

    def link(self, name: str, proxy: Proxy) -> None:
        """Do harm to what goes through *proxy*."""
        self._links[name] = proxy

    def run(self, until: Callable[[], bool], timeout: float = 300.0, most: int | None = None) -> None:
        """Do harm until *until* says that it is enough, or *most* deeds are done; heal, and wait for *until*.

        Raise `TimeoutError` when that does not come.
        """
        give_up = time.monotonic() + timeout
        while not until() and (most is None or self.done.total() < most) and time.monotonic() < give_up:
            self._wait()
            self.strike()
            self.see_to_it()
        self.heal()
        while not until():
            if time.monotonic() > give_up:
                raise TimeoutError(f"chaos, seed {self.seed}: it does not get done, after {dict(self.done)}")
            self.see_to_it()
            time.sleep(0.01)

    def strike(self) -> None:
        """Do one thing now."""
        targets = {deed: self._targets(deed) for deed, weight in self._deeds.items() if weight > 0}
        possible = [deed for deed in DEEDS if targets.get(deed)]
        (deed,) = self.random.choices(possible, [self._deeds[deed] for deed in possible])
        name = self.random.choice(targets[deed])
        self.done[deed] += 1
        if deed in _TO_PROCESSES:
            self._strike_process(deed, self._victims[name])
        else:
            self._strike_link(deed, self._links[name])

    def _targets(self, deed: str) -> list[str]:
        if deed in _TO_LINKS:
            return sorted(self._links)
        return sorted(self._victims)

    def _strike_process(self, deed: str, victim: Victim) -> None:
        if deed == "kill":
            victim.kill()
            victim.start()
        elif deed == "stop":
            victim.stop()
            self._wait()
            victim.go_on()
        else:
            victim.replace()
            self._wait()
            victim.wake()

    def _strike_link(self, deed: str, proxy: Proxy) -> None:
        if deed == "cut":
            proxy.cut()
            return
        if deed == "delay":
            proxy.delay(self.random.uniform(*self.pause))
        else:
            proxy.partition()
        self._wait()
        proxy.heal()

    def see_to_it(self) -> None:
        """Start again what has ended by itself, unless it ended well."""
        for victim in self._victims.values():
            if victim.exit_code():
                victim.start()

    def heal(self) -> None:
        """Take everything back: links work, and what was stopped goes on."""
        for proxy in self._links.values():
            proxy.heal()
        for victim in self._victims.values():
            victim.go_on()
            victim.wake()

    def _wait(self) -> None:
        time.sleep(self.random.uniform(*self.pause))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for victim in self._victims.values():
            victim.close()


def _exit_code(process: Any) -> int | None:
    code: int | None = process.poll() if isinstance(process, _Popen) else process.exitcode
    return code


def _wait(process: Any, seconds: float) -> bool:
    """Whether it has ended, within so many seconds."""
    if isinstance(process, _Popen):
        with suppress(Exception):
            process.wait(seconds)
    else:
        process.join(seconds)
    return _exit_code(process) is not None


def _signal(process: Any, number: int) -> None:
    if _exit_code(process) is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _kill(process: Any) -> None:
    _signal(process, signal.SIGKILL)
    _wait(process, _PATIENCE)
