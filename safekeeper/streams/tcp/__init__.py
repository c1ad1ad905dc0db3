"""`tcp:` carries a stream from process to process, without a broker: the producer listens, readers connect.

    tcp://127.0.0.1:7001/words                       one address, and the stream's name
    tcp://a.example:7001,b.example:7001/words        several: the producer is at the first that it can listen at, and
                                                     readers find it, as when a standby takes over

    secret=TEXT            what both sides know, else of the environment: SAFEKEEPER_STREAM_SECRET; needed off this host
    tls-cert=FILE          the certificate of this side, with tls-key=FILE
    tls-ca=FILE            who has to have signed the certificate of the other side
    window=4M              how many bytes may be under way to a reader that has not taken them
    beat=0.5               seconds between signs of life; after three of them without one a reader connects again
    max-elements=N         how many elements may wait for the slowest reader; any number without it
    when-full=stop         or drop-reader, which forgets the reader that is too far behind

The producer retains in memory what readers have not acknowledged: `retains` is false, so an operator has it in its
journal and sends it again after a restart. Numbers make that harmless: a reader drops what it has.
"""

from __future__ import annotations

from collections.abc import Sequence

from safekeeper.streams.carrier import Position
from safekeeper.streams.tcp.address import StreamAddress
from safekeeper.streams.tcp.inlet import TcpInlet
from safekeeper.streams.tcp.outlet import TcpOutlet
from safekeeper.url import show_url


def open_outlet(url: str, readers: Sequence[str], floor: int = 0) -> TcpOutlet:
    """See `Carrier`."""
    return TcpOutlet(StreamAddress.parse(url), readers, floor)


def open_inlet(url: str, reader: str | None, after: Position | None) -> TcpInlet:
    """See `Carrier`."""
    if isinstance(after, tuple):
        raise ValueError(f"a position in {show_url(url)} is a number, not {after}")
    return TcpInlet(StreamAddress.parse(url), reader, after)
