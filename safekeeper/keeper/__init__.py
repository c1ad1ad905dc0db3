"""SafeKeeper: a serialization queue and a storage queue in front of any backend.

`keeper.py` is its face; behind it every save completes exactly once. Read in this order: `keeper`, `serializers`
(states to bytes; with `exact`, `packed` and `typed`), `ticket` (what travels), `lanes` (a bounded queue, a lane per
id), `stage` (a queue and its threads), `completions` (each save ends
once), `pipeline` (all of it together), `overflow`, `interrupts`, `backoff`, `line`;
then `reader` and `fuse` for the way back, `lifetime` for forks and the end of the process, `metrics` and `notices` for
people.
`docs/keeper.md` is the guide.
"""

from safekeeper.keeper.keeper import SafeKeeper

__all__ = ["SafeKeeper"]
