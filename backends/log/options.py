"""The options of a `log:` URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from safekeeper.backend import Scope
from safekeeper.url import Size, check_words

_64_MIB: Final = Size(64 << 20)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """`log:///var/lib/app` or `log:relative/path`, such as `log:///var/lib/app?sync=interval&segment=256M`."""

    sync: Literal["always", "interval", "none"] = "always"
    """When a write is durable: before it returns; some time later, `sync-interval` at most; when the system pleases.
    With the last two a write goes to a buffer in this process, so it does not survive the end of the process either."""
    sync_interval: float = 1.0
    """Seconds between two syncs (or, with `none`, between two writes to the file)."""
    segment: Size = _64_MIB
    """At about this size a file of the log is sealed and the next one begun."""
    compact_dead: float = 0.5
    """A sealed segment is compacted when more than this share of its records is dead."""
    compact_rate: Size = _64_MIB
    """How many bytes a second compaction copies at most in the background."""
    scope: Literal["host", "network"] = "host"
    """Who shares the root: the processes of this host; or those of other hosts too, on a file system whose locks and
    caches are the same for all of them. `docs/format.md` names some; NFS and SMB are not among them and are
    refused. With `host`, every file system that other hosts may share is."""

    def __post_init__(self) -> None:
        check_words(self)
        if self.sync_interval <= 0:
            raise ValueError("sync-interval is a number of seconds above 0")
        if not 4096 <= self.segment <= 4 << 30:
            raise ValueError("segment is a size from 4K to 4G")
        if not 0.05 <= self.compact_dead <= 0.95:
            raise ValueError("compact-dead is a share from 0.05 to 0.95")
        if self.compact_rate <= 0:
            raise ValueError("compact-rate is a size above 0")

    def scope_of_writes(self) -> Scope:
        """Who sees a write when it has returned. What waits in a buffer of this process is seen by this process."""
        if self.sync != "always":
            return Scope.PROCESS
        return Scope.NETWORK if self.scope == "network" else Scope.HOST
