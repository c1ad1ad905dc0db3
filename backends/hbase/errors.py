"""What can go wrong between here and HBase, as one line that says what to do."""

from __future__ import annotations

import socket
from typing import Any

from safekeeper.backends.hbase import thrift
from safekeeper.backends.hbase.options import TableAddress
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.errors import Unavailable


class MissingTable(Misconfigured):
    """The server has no such table (yet)."""


class TableExists(Unavailable):
    """Somebody else has created the table, or is about to."""


class Dropped(Unavailable):
    """The connection is gone, and what was asked may or may not have been done: asking again is safe, and may help."""


_FOR_GOOD = {
    "NoSuchColumnFamilyException": "the table {table} has no family 'data': choose another table, or add the family",
    "AccessDeniedException": "the Thrift server's user may not do this with the table {table}: grant it RWC",
    "TableNotEnabledException": "the table {table} is disabled: enable '{table}' in the HBase shell",
    "NamespaceNotFoundException": "there is no namespace for the table {table}: create it in the HBase shell",
}
"""Java exceptions in an answer that need a change of the URL or of the server."""


def explain(address: TableAddress, error: Any) -> Unavailable:
    """The error to raise for *error*, which the driver raised, perhaps because the server sent it."""
    if isinstance(error, thrift.ANSWERED):
        return _explain_answer(address, error)
    if isinstance(error, thrift.ApplicationError):
        if error.type == thrift.ApplicationError.UNKNOWN_METHOD:
            return Misconfigured(f"{address}: is no Thrift 1 server of HBase: start one with 'hbase thrift start'")
        return Unavailable(f"{address}: the Thrift server failed: {_text(error.message)}")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{address}: did not answer in time: look at the server and the network, or raise timeout=")
    if isinstance(error, (thrift.TransportError, OSError, EOFError)):
        return Dropped(f"{address}: the connection broke: look at the Thrift server and the network")
    return Misconfigured(
        f"{address}: answers, but not as a Thrift server of HBase does: correct the port, protocol= or transport="
    )


def explain_connecting(address: TableAddress, error: BaseException) -> Unavailable:
    """The same for a connection that could not be made."""
    cause = error.__context__ or error
    if isinstance(cause, ConnectionRefusedError):
        return Unavailable(
            f"{address}: nothing listens there: start the Thrift server, or correct the host and the port"
        )
    if isinstance(cause, socket.gaierror):
        return Unavailable(f"{address}: the host is not known: correct it, or look at the name server")
    if isinstance(cause, TimeoutError):
        return Unavailable(f"{address}: did not answer in time: look at the server and the network, or raise timeout=")
    return Unavailable(
        f"{address}: cannot be reached ({getattr(cause, 'strerror', None) or cause}): look at the network"
    )


def explain_opening(address: TableAddress, error: Unavailable) -> Unavailable:
    """The same for the first question of all: here a wrong transport or protocol shows."""
    if isinstance(error, Dropped):
        return Unavailable(
            f"{address}: hung up at once: if the Thrift server runs with -f or -c, write transport=framed "
            "or protocol=compact"
        )
    if isinstance(error.__cause__, TimeoutError):
        return Unavailable(
            f"{address}: did not answer in time: look at the server and its workers, raise timeout=, or "
            "leave transport=framed and protocol=compact away if it runs without -f and -c"
        )
    return error


def _explain_answer(address: TableAddress, error: Any) -> Unavailable:
    said = _text(error.message)
    if "TableNotFoundException" in said:
        return MissingTable(
            f"{address}: there is no table {address.table}: create it with the family 'data', or let create=yes do that"
        )
    if "TableExistsException" in said or isinstance(error, thrift.AlreadyExists):
        return TableExists(f"{address}: the table {address.table} is there already")
    for name, meaning in _FOR_GOOD.items():
        if name in said:
            return Misconfigured(f"{address}: {meaning.format(table=address.table)}")
    return Unavailable(f"{address}: the server said: {said.strip().partition(chr(10))[0][:300]}")


def _text(message: bytes | str | None) -> str:
    """The driver leaves what the server sent as bytes: even str() of such an error fails."""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
