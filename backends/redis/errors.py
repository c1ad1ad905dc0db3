"""What can go wrong between here and a Redis server, as one line that says what to do."""

from __future__ import annotations

import ssl

from redis import exceptions

from safekeeper.backends.redis.options import Address
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.errors import Unavailable

BY_CODE = {
    "LOADING": "is still loading its data: try again in a moment",
    "READONLY": "is a read-only replica: give the URL of its master",
    "OOM": "has used up its maxmemory: raise it, or delete what is not needed",
    "MISCONF": "cannot write to its disk and refuses changes: look into its log",
    "NOREPLICAS": "has fewer replicas than its min-replicas-to-write and refuses changes: look at the replicas",
    "MASTERDOWN": "is a replica that has lost its master: look at the master",
    "CLUSTERDOWN": "belongs to a cluster that does not serve all slots: look at its nodes",
    "TRYAGAIN": "is moving this part of the data to another node: try again in a moment",
    "BUSY": "is busy with a script of somebody else: try again, or end it with SCRIPT KILL",
}
"""What an error code of the server means for us; the ones that retrying or other people can cure."""

BY_CODE_FOR_GOOD = {
    "NOAUTH": "wants a password: write redis://:PASSWORD@host or redis://USER:PASSWORD@host",
    "WRONGPASS": "does not accept the password (or the user): correct it",
    "NOPERM": "does not let this user do that: it needs +@read +@write +@transaction +@scripting",
    "DENIED": "runs in protected mode, open to its own host only: set a password on it",
    "WRONGTYPE": "has something else under our names: choose another prefix=",
}
"""The ones that need a change of the URL or of the server."""


_CODE_OF_CLASS = {
    exceptions.BusyLoadingError: "LOADING",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.AskError: "ASK",
    exceptions.MovedError: "MOVED",
}
"""Where the driver makes a class of a code, it takes the code away from the message."""


def code_of(error: Exception) -> str:
    """The code that the server's error message started with; any other word where there was none."""
    if isinstance(error, exceptions.AuthenticationError):
        return "NOAUTH" if "required" in str(error) else "WRONGPASS"
    return _CODE_OF_CLASS.get(type(error)) or str(error).partition(" ")[0]


def explain(address: Address, error: Exception) -> Unavailable:
    """The error to raise for *error*, which the driver raised or the server answered."""
    code = code_of(error)
    if code in BY_CODE_FOR_GOOD:
        return Misconfigured(f"{address}: {BY_CODE_FOR_GOOD[code]}")
    if code in BY_CODE:
        return Unavailable(f"{address}: {BY_CODE[code]}")
    if isinstance(error, exceptions.InvalidResponse):
        return Misconfigured(f"{address}: answers, but not as Redis does: correct the host or the port")
    if isinstance(error, exceptions.TimeoutError):
        return Unavailable(f"{address}: did not answer in time: look at the server and the network, or raise timeout=")
    for cause in _causes(error):
        if isinstance(cause, ConnectionRefusedError | FileNotFoundError):
            return Unavailable(f"{address}: nothing listens there: start the server, or correct the host and the port")
        if isinstance(cause, OSError):
            return Unavailable(f"{address}: cannot be reached ({cause.strerror}): look at the server and the network")
    if isinstance(error, exceptions.ConnectionError) and "closed by server" in str(error):
        return Unavailable(f"{address}: hung up: look at the server and the network")
    return Unavailable(f"{address}: the server said: {error}")


def explain_connecting(address: Address, error: Exception) -> Unavailable:
    """The same for a connection that could not be made: there is more that the URL may have got wrong."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message
            return Misconfigured(f"{address}: its certificate is not trusted ({why}): look at ca-file= and the host")
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return Misconfigured(f"{address}: does not speak TLS: write redis:// instead of rediss://")
        if isinstance(cause, ssl.SSLError):
            return Misconfigured(f"{address}: TLS failed ({cause.reason}): look at ca-file=, cert-file= and key-file=")
        if isinstance(cause, TimeoutError) and "handshake" in str(cause):
            return Unavailable(f"{address}: did not answer in time: if it does not speak TLS, write redis://")
        if isinstance(cause, ConnectionResetError) or "closed by server" in str(cause):
            return Unavailable(f"{address}: hung up at once: if it speaks TLS, write rediss://")
    if type(error) is exceptions.ResponseError and code_of(error) not in {*BY_CODE, *BY_CODE_FOR_GOOD}:
        return Misconfigured(f"{address}: does not take the connection ({error}): correct the URL")
    return explain(address, error)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
