"""Standby: a process that follows an operator's journal, and takes over when its owner is gone.

Read in this order: `door` (by which an owner is watched), `watch` (is it there?), `received` (what was read and is yet
to be pasted), `follower` (waiting for one's turn); `backups` (who stands by for which of many operators).
`docs/standby.md` is the guide. Operators use it: `Operator(..., standby="warm")`.
"""

from safekeeper.standby.backups import Backups
from safekeeper.standby.door import OwnerDoor
from safekeeper.standby.follower import Follower, StandbyLag, TakeoverTurn
from safekeeper.standby.received import ReceivedBlocks
from safekeeper.standby.watch import OwnerWatch

__all__ = ["Backups", "Follower", "OwnerDoor", "OwnerWatch", "ReceivedBlocks", "StandbyLag", "TakeoverTurn"]
