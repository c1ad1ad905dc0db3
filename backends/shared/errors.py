"""What a server's backend raises when the contract's own errors do not say enough."""

from __future__ import annotations

from safekeeper.errors import Unavailable


class Misconfigured(Unavailable):
    """The server was reached, or could be, and trying again does not help: the URL or the server must be changed.

    When a store is opened this becomes a `BadUrl`.
    """
