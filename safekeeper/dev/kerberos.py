"""A Kerberos realm of one's own: MIT's KDC as a child process, with principals that have keys in one keytab.

    with Kdc(folder, ["hdfs", "hdfs/localhost"]) as kdc:
        os.environ |= kdc.environment()        # before a JVM starts
        kdc.log_in("hdfs")
        HdfsCluster(other, more=kdc.hdfs_settings("hdfs/localhost", "HTTP/localhost"))

Needs Debian's packages krb5-kdc, krb5-admin-server and krb5-user, or the same of others; not root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from safekeeper.dev.process import DevError, ServerProcess, free_port

REALM = "SAFEKEEPER.TEST"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"

# Java looks up names and changes them where it may; everything is on loopback and has one name.
_CLIENTS = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_realm = false
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 ticket_lifetime = 24h
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 localhost = {realm}
"""
_SERVER = """\
[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principals
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
  max_life = 24h
 }}
[logging]
 kdc = STDERR
"""


class Kdc(ServerProcess):
    """The realm of *principals*, which are names without it."""

    def __init__(self, folder: Path, principals: Sequence[str]) -> None:
        self._principals = principals
        self._port = free_port()
        self.settings = folder / "krb5.conf"
        """Where clients find the realm."""
        self.keytab = folder / "keytab"
        """The keys of all principals."""
        self._tickets = folder / "tickets"
        command = ["env", *(f"{name}={value}" for name, value in self._variables().items()), _find("krb5kdc"), "-n"]
        super().__init__([*command, "-P", str(folder / "pid")], folder, "commencing operation")

    @property
    def _profile(self) -> Path:
        return self.settings.with_name("kdc.conf")

    def _variables(self) -> dict[str, str]:
        return {"KRB5_CONFIG": str(self.settings), "KRB5_KDC_PROFILE": str(self._profile), "PATH": _PATH}

    def launch(self) -> None:
        """Start it, with a realm of its own if there is none yet."""
        if not self.keytab.exists():
            self._make()
        super().launch()

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.settings.write_text(_CLIENTS.format(realm=REALM, port=self._port))
        self._profile.write_text(_SERVER.format(realm=REALM, port=self._port, folder=self.folder))
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "a password that nobody needs")
        for name in self._principals:
            self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {name}")
            self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {self.keytab} {name}")

    def _run(self, *words: str) -> None:
        command, *rest = words
        done = subprocess.run(
            [_find(command), *rest],
            env=os.environ | self._variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DevError(f"{' '.join(words)} failed: {' '.join(done.stderr.split())[-300:]}")

    def environment(self) -> dict[str, str]:
        """What processes need that log in or have a ticket; Java's among them, which ask the system's realm else."""
        return {
            "KRB5_CONFIG": str(self.settings),
            "KRB5CCNAME": f"FILE:{self._tickets}",
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self.settings}",
        }

    def log_in(self, principal: str) -> None:
        """Get a ticket, as a person does with `kinit`, for whoever has our `environment`."""
        self._run("kinit", "-k", "-t", str(self.keytab), "-c", f"FILE:{self._tickets}", f"{principal}@{REALM}")

    def hdfs_settings(self, server: str, web: str) -> dict[str, str]:
        """What an HDFS is told whose servers are the principal *server*, and its clients: everybody is known by
        Kerberos, and what goes to DataNodes is authenticated, too."""
        server, web = f"{server}@{REALM}", f"{web}@{REALM}"
        return {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
            "dfs.namenode.kerberos.principal": server,
            "dfs.datanode.kerberos.principal": server,
            "dfs.namenode.keytab.file": str(self.keytab),
            "dfs.datanode.keytab.file": str(self.keytab),
            "dfs.web.authentication.kerberos.principal": web,
            "dfs.web.authentication.kerberos.keytab": str(self.keytab),
            "dfs.namenode.kerberos.internal.spnego.principal": web,
            "dfs.block.access.token.enable": "true",
            "dfs.data.transfer.protection": "authentication",
            # Else DataNodes want ports that only root may open, or certificates for their web pages.
            "ignore.secure.ports.for.testing": "true",
            "dfs.webhdfs.enabled": "false",
        }


def _find(name: str) -> str:
    found = next((path for folder in _PATH.split(":") if os.access(path := f"{folder}/{name}", os.X_OK)), None)
    if found is None:
        raise DevError(f"{name} is not installed: apt-get install krb5-kdc krb5-admin-server krb5-user")
    return found
