"""Operators that are to be killed: a process that forks one for each line that it reads, so that they start quickly.

python killed.py            a line of JSON starts one and is answered by its process id; another line says later
                            how it ended
"""

import faulthandler
import json
import os
import sys
import time
import traceback

from safekeeper import Conflict, Every
from safekeeper.operators import Operator, pump
from safekeeper.policy import Eventual

KEYS, WINDOW = 20, 7
pump._CHECK = 0.2  # one that was replaced and has no events need not take five seconds to notice

CAPTURES = {
    "every": {},
    "often": {"capture": Every(events=3), "kind": "arbitrary"},
    "eventual": {"capture": lambda: Eventual(q=2.0, u=200, budget=0.002, period=0.01), "kind": "deterministic"},
    "hardly": {"capture": lambda: Eventual(q=1e9), "kind": "deterministic"},
    "at-once": {"kind": "deterministic", "release": "at-once"},
}


def window(operator, event):
    """Windows of seven, over both inputs: what is emitted depends on the order in which they were taken."""
    part = operator.part(b"%d" % (int(event.body) % KEYS), list)
    part.state.append(int(event.body) * (1 if event.source == "a" else 3))
    if len(part.state) == WINDOW:
        operator.emit("windows", b"%s %d" % (part.key, sum(part.state)))
        part.close()


def work(store, streams, capture, inputs, count, notes):
    """Be an operator until both inputs are at their ends. Note how it began: with nothing, in the middle or at the
    end."""
    settings = dict(CAPTURES[capture])
    if callable(settings.get("capture")):
        settings["capture"] = settings["capture"]()
    operator = Operator(
        "windows",
        store,
        inputs={name: f"{streams}&stream={name}" for name in inputs},
        outputs={name: f"{streams}&stream={name}" for name in ("windows", "order")},
        linger=0.002,
        want="precise",
        **settings,
    )
    with operator:
        begun = operator.events > 0 or operator.expects is not None
        done = operator.events == len(inputs) * count
        with open(notes, "a") as file:
            file.write("at the end\n" if done else "in the middle\n" if begun else "anew\n")
        if done:
            return
        for event in operator:
            window(operator, event)
            operator.emit("order", b"%s %d" % (event.source.encode(), event.position))
            if operator.events % 8 == 0:
                time.sleep(0.002)  # or most would be done before they are killed
            if operator.events + 1 == len(inputs) * count:
                operator.stop()


def start(line):
    pid = os.fork()
    if pid:
        print(f"pid {pid}", flush=True)
        return
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        work(**json.loads(line))
    except Conflict:
        os._exit(3)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main():
    for line in sys.stdin:
        if line.startswith("wait"):
            pid, status = os.waitpid(int(line.split()[1]), 0 if line.startswith("wait ") else os.WNOHANG)
            print(f"ended {os.waitstatus_to_exitcode(status)}" if pid else "running", flush=True)
        else:
            start(line)


if __name__ == "__main__":
    main()
