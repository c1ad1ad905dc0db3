"""From the URL of `objects+SCHEME:` to an object store: which driver, and what its options are.

objects+file:///var/lib/app            objects+memory://name            objects+s3://bucket/prefix?timeout=5
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from safekeeper.backends.objects.errors import errors_as_unavailable
from safekeeper.backends.objects.store import LEAST_RATE, MAX_OBJECT_BYTES, ObjectStore, store_of
from safekeeper.backends.shared.local_files import check_folder
from safekeeper.errors import BadUrl
from safekeeper.url import Url

PREFIX = "objects+"
_S3 = ("s3", "s3a")
_SECRET = ("key", "secret", "token", "password", "passphrase", "credential")
_NOT_IN_A_URL = ("kwargs", "loop", "session", "asynchronous", "use_listings_cache", "auto_mkdir")


@dataclass(frozen=True, slots=True)
class ObjectsOptions:
    """`objects+SCHEME:` with any scheme of fsspec: `objects+file:///var/lib/app`, `objects+s3://bucket/prefix`.

    Besides the options below, a URL takes those of the driver: the plain parameters of its class, `-` for `_`, yes and
    no for True and False. What does not fit into a URL, and secrets, come from fsspec's configuration files and
    variables.
    """

    parallel: int = 16
    """How many requests of one handle may be under way at a time, where the store is on a network."""

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise ValueError("parallel is at least 1")


@dataclass(frozen=True, slots=True)
class NetworkOptions(ObjectsOptions):
    """Also, where the driver is asynchronous: `objects+s3:`, `objects+gcs:`, `objects+abfs:` and others."""

    timeout: float = 60.0
    """Seconds after which a request counts as failed, its retries included; and one more for each 256 KiB that it
    uploads, and of `objects+s3:` downloads: slow is not failed."""

    def __post_init__(self) -> None:
        ObjectsOptions.__post_init__(self)
        if self.timeout <= 0:
            raise ValueError("timeout is above 0")


@dataclass(frozen=True, slots=True)
class S3Options(NetworkOptions):
    """Also for `objects+s3:`."""

    retries: int = 2
    """How often a request is made again. Each time waits for its part of the time-out."""

    def __post_init__(self) -> None:
        NetworkOptions.__post_init__(self)
        if self.retries < 0:
            raise ValueError("retries is 0 or more")


def open_store(url: Url) -> tuple[ObjectStore, ObjectsOptions]:
    """The store that *url* names. Nothing is asked of it yet."""
    scheme = url.scheme.removeprefix(PREFIX)
    driver = _driver(scheme)
    settings = S3Options if scheme in _S3 else NetworkOptions if driver.async_impl else ObjectsOptions
    ours = {field.name for field in dataclasses.fields(settings)}
    options = dataclasses.replace(url, query={k: v for k, v in url.query.items() if k in ours}).options(settings)
    theirs = _driver_options(url, driver, {k: v for k, v in url.query.items() if k not in ours}, sorted(ours))
    address = _address(url, scheme)
    if issubclass(driver, LocalFileSystem):
        check_folder(Path(url.local_path()))
    with errors_as_unavailable(place_of(url)):
        theirs |= driver._get_kwargs_from_urls(address) | {"use_listings_cache": False, "skip_instance_cache": True}
        if isinstance(options, S3Options):
            files, patient = _s3(driver, theirs, options, 0), _s3(driver, theirs, options, MAX_OBJECT_BYTES)
        else:
            files, patient = driver(**theirs), None
    return store_of(files, driver._strip_protocol(address), getattr(options, "timeout", None), patient), options


def place_of(url: Url) -> str:
    """What messages call the store: its URL without password and options."""
    return str(dataclasses.replace(url, query={}))


def _s3(driver: Any, settings: dict[str, Any], options: S3Options, upload: int) -> Any:
    """The driver for requests that upload at most so many bytes: until they are there, nothing is heard."""
    attempts = options.retries + 1
    patience = options.timeout / attempts
    config = {
        "connect_timeout": patience,
        "read_timeout": patience + upload / LEAST_RATE,
        "retries": {"mode": "standard", "total_max_attempts": attempts},
    }
    files = driver(**settings, config_kwargs=config)
    files.retries = 1  # those of s3fs would multiply with those of the client below it, which knows better when
    return files


def _driver(scheme: str) -> Any:
    try:
        return fsspec.get_filesystem_class(scheme or "nothing")
    except ValueError as error:
        raise BadUrl(f"fsspec knows no {scheme!r}: write {PREFIX}s3://bucket/prefix, for example") from error
    except ImportError as error:
        raise BadUrl(f"{PREFIX}{scheme}: needs a driver that is not installed: {error}") from error


def _address(url: Url, scheme: str) -> str:
    if scheme in ("file", "local"):
        return f"{scheme}://{url.local_path()}" if url.path.startswith("/") else url.local_path()
    if not url.host:
        raise BadUrl(f"{url} names no bucket: write {url.scheme}://bucket/prefix")
    login = "".join((url.user or "", f":{url.password}" if url.password else "", "@" if url.user else ""))
    port = f":{url.port}" if url.port is not None else ""
    return f"{scheme}://{login}{url.host or ''}{port}{url.path}"


def _driver_options(url: Url, driver: Any, query: dict[str, str], ours: list[str]) -> dict[str, Any]:
    known = [
        name
        for name, parameter in inspect.signature(driver.__init__).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "self" and not name.endswith(_NOT_IN_A_URL)
    ]
    options: dict[str, Any] = {}
    for text, value in query.items():
        name = text.replace("-", "_")
        if any(word in name for word in _SECRET):
            raise BadUrl(f"{url.scheme}: takes no {text} in its URL, where it would be seen: set it for the driver")
        if name not in known:
            takes = ", ".join([*ours, *(n.replace("_", "-") for n in known if not any(w in n for w in _SECRET))])
            raise BadUrl(f"{url.scheme}: has no option {text!r}; it takes {takes}")
        options[name] = {"yes": True, "no": False}.get(value, int(value) if value.isdecimal() else value)
    return options
