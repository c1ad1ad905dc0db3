"""What can go wrong between here and HDFS, as one line that says what to do."""

from __future__ import annotations

from safekeeper.errors import Unavailable


class Missing(Unavailable):
    """There is no such file or folder."""


class Exists(Unavailable):
    """There is such a file already, or somebody is writing it."""


_LINES = {
    "ConnectException": "nothing listens there: start the NameNode, or correct the host and the port",
    "NoRouteToHostException": "no way leads there: look at the network, or correct the host",
    "UnknownHostException": "the host is not known: correct it, or look at the name server",
    "SocketTimeoutException": "did not answer in time: look at the servers and the network, or raise timeout=",
    "ConnectTimeoutException": "did not answer in time: look at the servers and the network, or raise timeout=",
    "EOFException": "hung up: look at the server, or correct the port if that is no NameNode's",
    "StandbyException": "is a standby NameNode: write the name service of the pair, as in fs.defaultFS",
    "SafeModeException": "the NameNode is in safe mode: wait until it leaves it, or look why it does not",
    "NSQuotaExceededException": "the quota of names is used up: raise it, or remove something",
    "DSQuotaExceededException": "the quota of space is used up: raise it, or remove something",
    "QuotaByStorageTypeExceededException": "the quota of space is used up: raise it, or remove something",
}
"""By Java class: what to say after where it happened."""

_UNREACHABLE = frozenset({"BlockMissingException", "CannotObtainBlockLengthException"})
_NOT_A_NAME_NODE = frozenset({"RpcException", "InvalidProtocolBufferException", "VersionMismatch"})


def explain(where: str, exception: str, said: str) -> Unavailable:
    """The error to raise where the client raised *exception*, a Java class, and *said* something, at *where*."""
    kind = exception.rpartition(".")[2].rpartition("$")[2]
    line = " ".join(said.partition("\n")[0].split())
    if "cannot authenticate via" in said or kind == "KerberosAuthException":
        return Unavailable(
            f"{where}: there is no ticket of Kerberos: run kinit, or correct KRB5CCNAME and HADOOP_CONF_DIR"
        )
    if kind in ("FileNotFoundException", "NoSuchFileException"):
        return Missing(f"{where}: there is no such file: {line}")
    if kind in ("FileAlreadyExistsException", "AlreadyBeingCreatedException", "RecoveryInProgressException"):
        return Exists(f"{where}: exists already: {line}")
    if "UnknownHostException" in said:  # inside an IllegalArgumentException
        kind = "UnknownHostException"
    if kind in _LINES:
        return Unavailable(f"{where}: {_LINES[kind]}")
    if kind == "AccessControlException" and "uperuser" in said:  # there is one thing that we ask which needs it
        problem = "only the superuser of HDFS is told which DataNodes there are: be it, or list them in a topology file"
        return Unavailable(f"{where}: {problem}")
    if kind in ("AccessControlException", "AuthorizationException"):
        return Unavailable(f"{where}: permission denied ({line}): let this user in, or choose another folder")
    if kind in _NOT_A_NAME_NODE:
        return Unavailable(f"{where}: answers, but not as a NameNode does: correct the port ({kind}: {line})")
    if "could only be written to 0 of the" in said:
        none = "There are 0 datanode(s) running" in said
        problem = "no DataNode runs: start one" if none else "no DataNode has room for a block: free some disk space"
        return Unavailable(f"{where}: {problem}")
    if kind in _UNREACHABLE or "Could not obtain block" in said:
        return Unavailable(f"{where}: no DataNode that has the block can be reached: start it again ({line[:200]})")
    return Unavailable(f"{where}: {kind}: {line[:300]}")
