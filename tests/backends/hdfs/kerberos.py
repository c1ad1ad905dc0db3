"""The HDFS of these tests with Kerberos: with SAFEKEEPER_TEST_KERBEROS=1 there is a KDC, and everybody has a ticket."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from safekeeper.dev import hdfs
from safekeeper.dev.kerberos import Kdc

KERBEROS = os.environ.get("SAFEKEEPER_TEST_KERBEROS") == "1"
SETTINGS: dict[str, str] = {}
"""What clients must know; nothing without Kerberos."""

only_with_kerberos = pytest.mark.skipif(not KERBEROS, reason="SAFEKEEPER_TEST_KERBEROS is not 1")
not_with_kerberos = pytest.mark.skipif(KERBEROS, reason="the cluster does not believe a name in a URL")


@contextmanager
def logged_in(folder: Path) -> Iterator[None]:
    """All clusters and clients of this process, and those that it starts, use Kerberos; we are HDFS's superuser."""
    with Kdc(folder / "kdc", ["hdfs", "hdfs/localhost", "HTTP/localhost"]) as kdc:
        os.environ.update(kdc.environment())
        SETTINGS.update(kdc.hdfs_settings("hdfs/localhost", "HTTP/localhost"))
        hdfs._SETTINGS.update(SETTINGS)
        write_settings(folder / "conf", {})
        os.environ["HADOOP_CONF_DIR"] = str(folder / "conf")
        kdc.log_in("hdfs")
        yield


def write_settings(folder: Path, settings: Mapping[str, str]) -> None:
    """Where Hadoop's tools find them, with what Kerberos needs."""
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in {**SETTINGS, **settings}.items()
    )
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
