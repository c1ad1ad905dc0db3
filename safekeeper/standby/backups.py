"""Which process stands by for which operator, where several processes hold several operators each.

    idle = IdleCapture(backup=lambda view: backups.of(view.name))
    backups = Backups(store, "prices", idle, make=open_operator, work=serve)     in every process
    ...
    backups.step()                                  every few seconds, in each of them

A step says in the store how long the recovery of each operator of this process would take, lets whoever would take
longest move some of them (`policy/assign.py`), and then begins to stand by for those that are to be backed up here, and
ends to do so for others. Nobody leads: what is in the store are hints. If two processes stand by for one operator, one
of them takes over; if none does for a moment, its journal waits.

    group NAME.backups    holds_PROCESS     JSON: a number that grows, and by operator the seconds of its recovery
                          backup_OPERATOR   JSON: the process that stands by for it
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Any

from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.errors import Closed, Conflict
from safekeeper.keeper.notices import log_safely
from safekeeper.policy.assign import assign
from safekeeper.policy.idle import IdleCapture
from safekeeper.policy.minmax import CaptureUnit, expected_recovery

if TYPE_CHECKING:
    from safekeeper.operators.operator import Operator

_log = logging.getLogger("safekeeper")

_SILENT = 3  # steps, after which a process that says nothing new counts as gone
_FORGOTTEN = 2 * _SILENT  # steps, after which what it has said is deleted
_HOLDS, _BACKUP = b"holds_", b"backup_"


class Backups:
    """The operators that share *idle* in this process, and those of other processes for which it stands by.

    *make* gives an operator by its name, with `standby="warm"`; *work* gets it when it was taken over, and returns when
    it is to be closed. *store* is seen by all processes that have the same *name*.
    """

    def __init__(
        self,
        store: Backend,
        name: str,
        idle: IdleCapture,
        *,
        make: Callable[[str], Operator],
        work: Callable[[Operator], object],
        process: str | None = None,
    ) -> None:
        self.process = process or f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        self.standbys: dict[str, Operator] = {}
        """The operators for which this process stands by, or that it has taken over, by name."""
        self._store, self._group, self._idle = store, f"{name}.backups", idle
        self._make, self._work = make, work
        self._number = 0
        self._backups: dict[str, str] = {}
        self._heard: dict[str, tuple[int, int]] = {}  # of each process its last number, and for how many steps it is
        self._threads: dict[str, Thread] = {}

    def of(self, operator: str) -> str:
        """The process that stands by for an operator; empty if nobody does."""
        return self._backups.get(operator, "")

    def step(self) -> None:
        """Say what is held here, move what should be moved, and stand by for what is to be backed up here."""
        self._tell()
        processes = self._look()
        self._assign(processes)
        held = {unit.name for units in processes.values() for unit in units}
        mine = {operator for operator in held if self.of(operator) == self.process}
        for operator in mine - set(self.standbys):
            self._begin(operator)
        for operator, standby in list(self.standbys.items()):
            if operator in held - mine:  # what nobody holds may be about to be taken over here
                standby.stop_waiting()

    def close(self) -> None:
        """Stand by for nothing any more, and let what was taken over end."""
        for standby in list(self.standbys.values()):
            standby.stop()
        for thread in list(self._threads.values()):
            thread.join()
        batch = Batch()
        batch.delete(CheckpointId(self._group, _HOLDS + self.process.encode()))
        self._store.write(batch)

    def _tell(self) -> None:
        self._number += 1
        seconds = {unit.name: unit.load for unit in self._now()}
        said = json.dumps({"number": self._number, "seconds": seconds}).encode()
        self._store.write(Batch({CheckpointId(self._group, _HOLDS + self.process.encode()): said}))

    def _now(self) -> list[CaptureUnit]:
        """The operators here, with their recovery times as the load of one second."""
        return [replace(unit, load=unit.recovery(at), since=0.0, waiting=0.0) for at, unit in self._idle.units()]

    def _look(self) -> dict[str, list[CaptureUnit]]:
        """What every process that is there holds."""
        said, backups = self._read()
        for process in set(self._heard) - set(said):
            del self._heard[process]
        for process, what in said.items():
            number, steps = self._heard.get(process, (0, 0))
            self._heard[process] = (what["number"], 0 if what["number"] != number else steps + 1)
        self._forget([process for process in said if self._heard[process][1] >= _FORGOTTEN])
        there = [process for process in sorted(said) if self._heard[process][1] < _SILENT]
        self._backups = {operator: process for operator, process in backups.items() if process in there}
        return {process: self._held(process, said[process]["seconds"], there) for process in there}

    def _forget(self, processes: list[str]) -> None:
        """Delete what *processes* have said, which have crashed: else who comes next would count them at first."""
        batch = Batch()
        for process in processes:
            batch.delete(CheckpointId(self._group, _HOLDS + process.encode()))
        if len(batch):
            self._store.write(batch)

    def _held(self, process: str, seconds: dict[str, float], there: list[str]) -> list[CaptureUnit]:
        others = [other for other in there if other != process]
        units = []
        for at, (operator, load) in enumerate(sorted(seconds.items())):
            if self.of(operator) in ("", process) and others:  # nobody does yet, or whoever did has taken it over
                self._backups[operator] = others[at % len(others)]
            units.append(CaptureUnit(operator, self.of(operator), load, 0.0, 0.0))
        return units

    def _assign(self, processes: dict[str, list[CaptureUnit]]) -> None:
        """Say who stands by for what, with moves if the recovery of this process takes longest."""
        longest = {process: expected_recovery(units, 1.0) for process, units in processes.items()}
        if longest and max(longest, key=longest.__getitem__) == self.process:
            for move in assign(processes, 1.0):
                self._backups[move.unit] = move.to
        _, backups = self._read()
        batch = Batch()
        for operator, process in self._backups.items():
            if backups.get(operator) != process:
                batch.put(CheckpointId(self._group, _BACKUP + operator.encode()), json.dumps(process).encode())
        if len(batch):
            self._store.write(batch)

    def _read(self) -> tuple[dict[str, Any], dict[str, str]]:
        """What each process has said, and who stands by for each operator."""
        keys = sorted(self._store.keys(self._group))
        values = self._store.read([CheckpointId(self._group, key) for key in keys])
        found: dict[bytes, dict[str, Any]] = {_HOLDS: {}, _BACKUP: {}}
        for key, value in zip(keys, values, strict=True):
            kind, name = (kind := key[: key.index(b"_") + 1]), key[len(kind) :].decode()
            if value is not None and kind in found:
                found[kind][name] = json.loads(value)
        return found[_HOLDS], found[_BACKUP]

    def _begin(self, operator: str) -> None:
        standby = self.standbys[operator] = self._make(operator)
        thread = self._threads[operator] = Thread(target=self._stand_by, args=(operator, standby), daemon=True)
        thread.start()

    def _stand_by(self, operator: str, standby: Operator) -> None:
        try:
            with standby:
                self._work(standby)
        except (Closed, Conflict):
            pass  # it is another one's now
        except Exception as error:
            log_safely(_log.warning, "%s, for which %s stands by, has ended: %r", operator, self.process, error)
        finally:
            del self.standbys[operator], self._threads[operator]
