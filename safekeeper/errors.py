"""Everything safekeeper raises, as one tree.

    SafekeeperError
    ├── Unavailable         the store could not be reached or could not do it; trying again is safe
    ├── Corruption          stored bytes are not what was saved; the message names the place
    ├── Conflict            another writer took over; open the store again
    ├── Gone                elements of a stream are no more where they were asked for; begin after them
    ├── Closed              the handle was closed, or inherited through a fork; open a new one
    ├── QueueFull           a keeper's queue was full and this save gave way; save again later
    ├── HalfDone            an event of this element raised half-way; checkpoint or forget its key
    ├── Diverged            an operator replayed an event and did something else than before; it is not deterministic
    ├── BadState            the state has no bytes, or the bytes no state; the message says why (also a ValueError)
    ├── TooLarge            the value or key is over the limit; split it     (also a ValueError)
    ├── BadId               the group or key is not an id; rename it         (also a ValueError)
    └── BadUrl              the URL names no usable store; correct it        (also a ValueError)

An error says in one line what is wrong and what to do. A driver's own exception never crosses the contract:
it is chained as the cause.
"""


def one_line(text: str) -> str:
    """*text* as one line that can be shown anywhere: what is not printable is escaped, as in `\\x1b`.

    What is stored may be anything. Written to a terminal as it is, it could move the cursor, change what was shown
    before, or type.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class SafekeeperError(Exception):
    """The root of everything safekeeper raises on purpose."""


class Unavailable(SafekeeperError):
    """The store did not answer, or could not do what was asked.

    Absent is never reported this way, and this is never reported as absent. A write that raised it may or may not
    have happened; writing again is safe.
    """


class Corruption(SafekeeperError):
    """Stored bytes are not the bytes that were saved. The message names the file, row or key and the place in it."""


class Conflict(SafekeeperError):
    """Another writer took this one's place. Nothing acknowledged is lost; open the store again to go on."""


class Gone(SafekeeperError):
    """Elements of a stream that were asked for, or that must come before others, are not there any more.

    They were trimmed, or the carrier has lost them; the message names them. Nothing is stepped over in silence: whoever
    can do without them says so, by beginning after them.
    """


class Closed(SafekeeperError):
    """The handle was closed, or belongs to the parent of this forked process. Open a new one."""


class QueueFull(SafekeeperError):
    """A keeper's queue was full, so this save was rejected or dropped, or waited in vain until its deadline.

    The state was not stored. Save less often, enlarge the queue, or let newer states replace older ones (`coalesce`).
    """


class HalfDone(SafekeeperError):
    """An event of this element raised in the middle of its block and was not undone, so nobody knows what its state is.

    `Checkpointed.checkpoint(key)` stores it as it is, `Checkpointed.forget(key)` removes it; `event(key, undo=True)`
    would have put it back.
    """


class Diverged(SafekeeperError):
    """An operator that was recovered did something else with an event than it did before. The message names the event
    and the part.

    It was declared deterministic and is not: it depends on the clock, on a random number, on the order of a set, on
    something outside of its parts. Mend it, or take `capture=Every(...)`, which replays nothing.
    """


class BadState(SafekeeperError, ValueError):
    """The state could not be turned into bytes, or the stored bytes not into a state: another serializer wrote them, or
    another version of the application."""


class TooLarge(SafekeeperError, ValueError):
    """A value or a key is over the limit that holds for every backend. `safekeeper.large` writes values of any size."""


class BadId(SafekeeperError, ValueError):
    """The group or the key cannot be part of an id."""


class BadUrl(SafekeeperError, ValueError):
    """The URL names no store that can be used: unknown scheme or option, bad value, missing driver, impossible path.

    Trying again does not help. It is raised when the store is opened; by the first write where only that can tell, such
    as on a read-only file system.
    """
