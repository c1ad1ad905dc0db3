"""A server that speaks S3 and keeps everything in memory: moto's, which has to be installed."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import closing
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec

from safekeeper.dev.process import DevError, ServerProcess, free_port

SETTINGS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What has to be in the environment of its clients."""

# Moto's own command answers 500 now and then when requests come at the same time: its dicts know no threads.
_SERVER = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
count = 0
def one_at_a_time(environ, start_response):
    global count
    with lock:
        if environ["PATH_INFO"] == "/-/requests":
            start_response("200 OK", [])
            return [str(count).encode()]
        count += 1
        return [b"".join(moto(environ, start_response))]
server = make_server("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
print("it listens", flush=True)
server.serve_forever()
"""


def count_requests(port: int) -> int:
    """How many requests the server on *port* has had; this one is not counted."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/-/requests")
        return int(connection.getresponse().read())


class S3Server(ServerProcess):
    """A server on a free port of 127.0.0.1, with nothing in it. What it keeps is gone when it ends."""

    def __init__(self, folder: Path) -> None:
        if find_spec("moto") is None or find_spec("s3fs") is None:
            raise DevError("an S3 server needs moto, its clients need s3fs: pip install 'moto[s3,server]' s3fs")
        self.port = free_port()
        super().__init__([sys.executable, "-c", _SERVER, str(self.port)], folder, "it listens")

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def requests(self) -> int:
        """How many requests it has had so far."""
        return count_requests(self.port)

    def client(self) -> Any:
        """The driver's own file system, to look at the server past safekeeper."""
        return fsspec.filesystem("s3", endpoint_url=self.endpoint, use_listings_cache=False)

    def make_bucket(self) -> str:
        """The name of a new bucket."""
        name = f"bucket-{secrets.token_hex(6)}"
        self.client().mkdir(name)
        return name
