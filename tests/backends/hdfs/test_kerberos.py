"""A cluster that knows its users by Kerberos. With SAFEKEEPER_TEST_KERBEROS=1 all tests of this folder run on one."""

import os
import subprocess
import sys

import jpype
import pytest

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.backends.hdfs.client import start_jvm
from safekeeper.dev.kerberos import REALM

from .kerberos import only_with_kerberos

pytestmark = [only_with_kerberos, pytest.mark.timeout(900)]

A, LARGE = CheckpointId("g", b"a"), CheckpointId("g", b"large")
WRITE = """
import sys, safekeeper
from safekeeper import Batch, CheckpointId, SafekeeperError
try:
    with safekeeper.open(sys.argv[1]) as store:
        store.write(Batch({CheckpointId("g", b"a"): b"other"}))
except SafekeeperError as error:
    sys.exit(str(error))
"""


def test_whoever_has_a_ticket_writes_and_reads_as_its_owner(hdfs_url):
    with safekeeper.open(hdfs_url) as store, safekeeper.open(f"{hdfs_url}?workers=3") as other:
        store.write(Batch({A: b"value", LARGE: bytes(20 << 20)}))
        assert other.read([A, LARGE]) == [b"value", bytes(20 << 20)]
    start_jvm()
    user = jpype.JClass("org.apache.hadoop.security.UserGroupInformation").getLoginUser()
    assert str(user.getUserName()) == f"hdfs@{REALM}"
    assert bool(user.hasKerberosCredentials())


def test_another_process_finds_the_ticket_by_the_environment(hdfs_url):
    done = subprocess.run(
        [sys.executable, "-c", WRITE, f"{hdfs_url}?timeout=120"],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    with safekeeper.open(hdfs_url) as store:
        assert store.read([A]) == [b"other"]


def test_without_a_ticket_there_is_one_clear_line(hdfs_url, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITE, f"{hdfs_url}?timeout=120"],
        env=os.environ | {"KRB5CCNAME": f"FILE:{tmp_path}/nothing"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hdfs://")]
    assert "there is no ticket of Kerberos: run kinit" in line
