"""What it costs a writer of `log` that others might write, and that others are there.

    python -m safekeeper.bench.studies.log_sharing --quick

90 % save / 10 % fetch of 1 KB under 1,000 ids, every save durable, by 1 and by 16 threads of one process. `alone` is
the same code with everything left out that is for other writers: choosing a sequence above theirs, saying so, looking
whether the folder was taken over, and looking for other folders before a read. `shared` is the log as it is, and
`among-others` the same with two more processes that have written to the root and are idle.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from safekeeper import Batch, CheckpointId
from safekeeper.backends.log.backend import LogBackend
from safekeeper.bench.harness.interleave import Interleaved, interleave, report
from safekeeper.bench.studies.log_write_path.arms import IDS, VALUES, mixed
from safekeeper.bench.ycsb.peers import BackendPeer
from safekeeper.testing.peer import Peer

_LEAST: Final = 0.95
"""How much of the throughput of `alone` is to be left."""


def leave_sharing_out(store: LogBackend) -> None:
    """Let the log behave as if nobody else could ever write."""
    log = store._log
    assert log is not None
    assert log._writing is not None
    appender, own = log._writing.appender, (log._writing.appender.folder,)

    def nothing(*_: object) -> None:
        pass

    vars(appender)["check_not_fenced"] = nothing
    vars(appender._status).update(choose=nothing, take=nothing)
    vars(log.root).update(highest_beside=lambda _: 0, folders=lambda: own, refresh=lambda: own)


def table(folder: Path, threads: int, rounds: int, seconds: float) -> Interleaved:
    """The three arms with so many threads."""
    with ExitStack() as open_stores:
        stores = {name: BackendPeer(f"log://{folder}/{name}") for name in ("alone", "shared", "among-others")}
        for store in stores.values():
            open_stores.callback(store.close)
            store.save_all(list(zip(IDS, VALUES, strict=True)))
        alone = stores["alone"]._store
        assert isinstance(alone, LogBackend)
        leave_sharing_out(alone)
        for number in range(2):
            peer = open_stores.enter_context(Peer(f"log://{folder}/among-others"))
            peer.write(Batch({CheckpointId("others", b"%d" % number): b""}))
        arms = {name: partial(mixed, store, threads, seconds) for name, store in stores.items()}
        return interleave(arms, rounds, f"{threads} threads" if threads > 1 else "1 thread")


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--rounds", type=int, help="how often each arm is measured")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    given = parser.parse_args()
    rounds, seconds = given.rounds or (3 if given.quick else 15), 0.2 if given.quick else 1.0
    with tempfile.TemporaryDirectory() as folder:
        results = [table(Path(folder) / str(threads), threads, rounds, seconds) for threads in (1, 16)]
    report(results, "alone", given.json)
    for result in results:
        for arm in ("shared", "among-others"):
            print(result.at_least(_LEAST, arm, "alone"))


if __name__ == "__main__":
    main()
