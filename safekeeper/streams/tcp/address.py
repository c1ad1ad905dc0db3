"""The URL of a stream over TCP, taken apart."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass

from safekeeper.errors import BadUrl
from safekeeper.streams.retained import Retention, WhenFull
from safekeeper.url import Size, Url, show_url
from safekeeper.wire import check_secret

SECRET_VARIABLE = "SAFEKEEPER_STREAM_SECRET"
"""The environment variable with the secret that producers and readers share."""


_WINDOW = Size(4 << 20)


@dataclass(frozen=True, slots=True)
class TcpStreamOptions:
    """What may stand after the `?`."""

    secret: str | None = None
    window: Size = _WINDOW
    beat: float = 0.5
    max_elements: int | None = None
    when_full: WhenFull = "stop"
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None

    def __post_init__(self) -> None:
        if self.window < 1 or not self.beat > 0:
            raise ValueError("window= and beat= take more than 0")
        if self.tls_key and not self.tls_cert:
            raise ValueError("tls-key= is the key of tls-cert=: give both")
        if self.secret is not None:
            check_secret(self.secret)
        self.retention  # noqa: B018 - it checks the two others

    @property
    def retention(self) -> Retention:
        """How far readers may be behind."""
        return Retention(self.max_elements, self.when_full)

    @property
    def is_tls(self) -> bool:
        """Whether what travels is encrypted."""
        return bool(self.tls_cert or self.tls_ca)


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """Where a stream is: at one of several addresses, by its name."""

    places: tuple[tuple[str, int], ...]
    name: str
    options: TcpStreamOptions
    secret: bytes
    shown: str
    """The URL, for messages."""

    @classmethod
    def parse(cls, text: str) -> StreamAddress:
        """Take *text* apart: `tcp://host:port,host:port/name?...`. Raise `BadUrl` when it makes no sense."""
        servers, slash, rest = text.partition("://")[2].partition("/")
        first, *others = servers.split(",") if servers else [""]
        url = Url.parse(f"tcp://{first}/{rest}" if slash else text)
        shown = show_url(text) if not others else f"tcp://{servers}/{str(url).partition('://')[2].partition('/')[2]}"
        name = url.path.strip("/")
        if not name or "/" in name or not name.isprintable():
            raise BadUrl(f"{shown} names no stream: write tcp://127.0.0.1:7001/words")
        options = url.options(TcpStreamOptions)
        places = tuple(_place(Url.parse(f"tcp://{server}/{name}"), shown) for server in (first, *others))
        return cls(places, name, options, _secret(options, places, shown), shown)

    def server_context(self) -> ssl.SSLContext | None:
        """How a producer encrypts; None if it does not."""
        options = self.options
        if not options.is_tls:
            return None
        if not options.tls_cert:
            raise BadUrl(f"{self.shown}: a producer shows a certificate: add tls-cert=FILE&tls-key=FILE")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_own(context)
        if options.tls_ca:  # then readers have to show one, too
            self._load_others(context, options.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext | None:
        """How a reader encrypts; None if it does not."""
        options = self.options
        if not options.is_tls:
            return None
        if not options.tls_ca:
            raise BadUrl(f"{self.shown}: a reader checks the producer's certificate: add tls-ca=FILE")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load_others(context, options.tls_ca)
        if options.tls_cert:
            self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        assert self.options.tls_cert
        try:
            context.load_cert_chain(self.options.tls_cert, self.options.tls_key)
        except OSError as error:  # an SSLError is one
            raise BadUrl(f"{self.shown}: tls-cert= and tls-key= cannot be used: {error}") from error

    def _load_others(self, context: ssl.SSLContext, file: str) -> None:
        try:
            context.load_verify_locations(file)
        except OSError as error:
            raise BadUrl(f"{self.shown}: tls-ca= cannot be used: {error}") from error


def _place(url: Url, shown: str) -> tuple[str, int]:
    if url.host is None or url.port is None or url.user is not None:
        raise BadUrl(f"{shown}: each address is host:port, such as tcp://127.0.0.1:7001/words")
    return url.host, url.port


def _secret(options: TcpStreamOptions, places: tuple[tuple[str, int], ...], shown: str) -> bytes:
    """The shared secret; nobody needs one who stays on this host."""
    secret = options.secret or os.environ.get(SECRET_VARIABLE, "")
    if secret:
        try:
            return check_secret(secret)
        except ValueError as error:
            raise BadUrl(f"{SECRET_VARIABLE}: {error}") from error
    if not all(_is_loopback(host) for host, _ in places):
        raise BadUrl(f"{shown} leaves this host: set {SECRET_VARIABLE} on both sides; `openssl rand -hex 16` makes one")
    return b""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
