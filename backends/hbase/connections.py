"""Connections to a Thrift server. One that has seen any error at all is never used again.

After a time-out the driver would take the late answer for the answer to the next question, and after a failed send it
would send the old bytes once more: a connection is good as long as every call on it has returned, and not a moment
longer.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from safekeeper.backends.hbase import thrift
from safekeeper.backends.hbase.errors import Dropped, explain, explain_connecting
from safekeeper.backends.hbase.options import HBaseOptions, TableAddress
from safekeeper.backends.shared.connection_pool import Idle
from safekeeper.errors import SafekeeperError, Unavailable

T = TypeVar("T")


class HBaseConnection:
    """One connection, put together as happybase does it, but for what happybase does when it forgets one: that would
    shut down the socket of a forked child's parent."""

    def __init__(self, address: TableAddress, options: HBaseOptions) -> None:
        self._socket = thrift.Socket(address.host, address.port, socket_timeout=options.timeout * 1000)
        transport = thrift.TRANSPORTS[options.transport](self._socket)
        protocol = thrift.PROTOCOLS[options.protocol](transport, decode_response=False)
        self.client = thrift.Client(thrift.Service, protocol)
        try:
            transport.open()
        except (thrift.TransportError, OSError) as error:
            raise explain_connecting(address, error) from error

    def is_good(self) -> bool:
        """Whether the server has neither hung up nor sent anything since its last answer."""
        poll = select.poll()
        poll.register(self._socket.sock, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._socket.close()


class Connections:
    """At most so many connections as the options say, each used by one thread at a time and kept for the next."""

    def __init__(self, address: TableAddress, options: HBaseOptions) -> None:
        self._address = address
        self._options = options
        self._free = threading.BoundedSemaphore(options.connections)
        self._idle: Idle[HBaseConnection] = Idle(options.connections)
        self._answered = 0.0

    def run(self, ask: Callable[[Any], T]) -> T:
        """What *ask* returns when it is given a client of the driver. It may be called twice: if a connection breaks,
        another one is tried, so what it does must do no harm when it is done again."""
        try:
            return self._run_once(ask)
        except Dropped:
            return self._run_once(ask)

    def _run_once(self, ask: Callable[[Any], T]) -> T:
        with self._connection() as connection:
            try:
                answer = ask(connection.client)
            except SafekeeperError:
                raise
            except Exception as error:  # the driver has no common root for its errors
                if not isinstance(error, thrift.ANSWERED):
                    self._idle.clear()  # what broke this connection may have broken those that were idle for longer
                raise explain(self._address, error) from error
            self._answered = time.monotonic()
            return answer

    @contextmanager
    def _connection(self) -> Iterator[HBaseConnection]:
        while not self._free.acquire(timeout=self._options.timeout):
            if time.monotonic() - self._answered > self._options.timeout:  # nobody else gets on either
                raise Unavailable(
                    f"{self._address}: all connections were busy for too long: raise connections= or timeout="
                )
        try:
            connection = self._idle.take() or HBaseConnection(self._address, self._options)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._idle.keep(connection)
        finally:
            self._free.release()

    def close(self) -> None:
        """Close the idle connections; those at work are closed when they have done it."""
        self._idle.close()
