"""The coordinator of Peace beside the Spark driver: for `hdfs:` URLs with `placement=peace` that name none."""

from __future__ import annotations

import atexit
import secrets
from contextlib import ExitStack
from dataclasses import replace
from threading import Lock
from urllib.parse import quote, urlencode

from safekeeper.url import Url

_lock = Lock()
_running = ExitStack()
_started: dict[str, str] = {}
atexit.register(_running.close)


def with_coordinator(url: str) -> str:
    """*url* as executors get it: where it asks for Peace and names no coordinator, one is started in this process.

    It runs until the process ends. The URL then has its address and, as its password, the secret that it shares with
    the writers. Any other URL is returned as it is.
    """
    parsed = Url.parse(url)
    if parsed.scheme != "hdfs" or parsed.query.get("placement") != "peace" or "peace" in parsed.query:
        return url
    with _lock:
        if url not in _started:
            _started[url] = _start(parsed)
        return _started[url]


def _start(url: Url) -> str:
    from safekeeper.backends.hdfs.options import HdfsOptions
    from safekeeper.backends.hdfs.peace.serve import serve
    from safekeeper.backends.hdfs.peace.topology import Topology

    secret = url.password or secrets.token_urlsafe()
    options = url.options(HdfsOptions)
    topology = Topology(wire=options.peace_wire, link=options.peace_link)
    coordinator = _running.enter_context(serve(url, topology, secret, host=None))
    query = {**url.query, "peace": f"{coordinator.host}:{coordinator.port}"}
    return _text(replace(url, password=secret, query=query))


def _text(url: Url) -> str:
    """The whole URL, with its password."""
    login = f"{quote(url.user or '', safe='')}:{quote(url.password or '', safe='')}@"
    port = f":{url.port}" if url.port is not None else ""
    return f"{url.scheme}://{login}{url.host or ''}{port}{quote(url.path)}?{urlencode(url.query)}"
