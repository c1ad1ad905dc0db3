"""HDFS for Python: the client that PySpark ships, in a JVM inside this process. Nobody else here knows of Java.

The JVM starts with the first `Client` and stays until the process ends: a process has one JVM, once. A child made by
`fork` has a JVM whose threads are gone, so it gets `Closed`; start it afresh (`spawn`) instead. Java stops its threads
by faults that it causes itself: so `faulthandler`, which would take these signals away from it when the process ends,
is switched off when it starts, and Java says where a crash was.

The cluster's own settings are found as Hadoop's tools find them: `core-site.xml` and `hdfs-site.xml` in
`$HADOOP_CONF_DIR`, else in `$HADOOP_HOME/etc/hadoop`. High availability, observer NameNodes, mount tables (ViewFS),
Kerberos (of whoever has run `kinit`) and encryption zones follow from them.

Bytes go to Java and back without a copy: a direct buffer is laid over the memory that they are in.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final

import jpype
import jpype.config

from safekeeper.backends.hdfs.errors import explain
from safekeeper.errors import BadUrl, Closed, Unavailable

_JARS: Final = ("hadoop-client-api-", "hadoop-client-runtime-", "slf4j-api-")
# -Xrs leaves the signals to Python. The collector without threads of its own suits a process whose data is elsewhere.
_JVM_OPTIONS: Final = ("-Xrs", "-XX:+UseSerialGC", "-Dslf4j.internal.verbosity=ERROR")
_PYBUF_WRITE: Final = 0x200
_PIECE: Final = 1 << 20  # bytes that go to Java in one call: whether a slow write gets on is known after each
_DIRECT_FROM: Final = 64 << 10  # below, a copy is cheaper than laying a buffer over the bytes
_MOST_PROXIES: Final = 200
_USUAL_BLOCK: Final = 128 << 20
_LAZY_PERSIST: Final = 15  # the number of the storage policy

_starting = Lock()
_started_in = 0


# --- the JVM ----------------------------------------------------------------------------------------------------------


def start_jvm() -> None:
    """Start the JVM unless it runs. Raise `BadUrl` where Java or the jars are missing, `Closed` after a fork."""
    global _started_in
    if _started_in and _started_in != os.getpid():
        raise Closed(f"hdfs: this process was forked from {_started_in}, whose JVM it cannot use: spawn a fresh one")
    with _starting:
        if _started_in:
            return
        if not jpype.isJVMStarted():
            path = [*_settings_folders(), *find_jars()]
            jpype.config.onexit = False
            faulthandler.disable()
            try:
                jpype.startJVM(*_JVM_OPTIONS, classpath=path, convertStrings=False)
            except (jpype.JVMNotFoundException, OSError) as error:
                raise BadUrl("hdfs: needs Java 17: install it, or set JAVA_HOME") from error
            atexit.register(_leave_jvm)
        try:
            jpype.JClass("org.apache.hadoop.hdfs.DistributedFileSystem")
        except TypeError as error:
            raise BadUrl(
                "hdfs: this process has a JVM without Hadoop: open hdfs: before whatever started it"
            ) from error
        _started_in = os.getpid()


def _leave_jvm() -> None:
    """Let the process end with the JVM in it. What is still open is as if the process had been killed.

    JPype would take the JVM down, which now and then crashes with Hadoop's threads in it. Left alone, its thread that
    gives back Python's objects crashes when there is no Python any more; so that one is stopped.
    """
    if _started_in == os.getpid():
        with suppress(Exception):
            jpype.JClass("org.jpype.ref.JPypeReferenceQueue").getInstance().stop()


def find_jars() -> list[str]:
    """The jars of the client of HDFS: of the PySpark that is installed, else of `$SPARK_HOME`, as executors have it.

    Raise `BadUrl` where they are missing.
    """
    spec, home = importlib.util.find_spec("pyspark"), os.environ.get("SPARK_HOME")
    if spec is not None and spec.origin is not None:
        home = str(Path(spec.origin).parent)
    if not home:
        raise BadUrl("hdfs: needs the jars of pyspark: pip install 'safekeeper[hdfs]', or set SPARK_HOME")
    folder = Path(home) / "jars"
    jars = [str(jar) for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_JARS)]
    if len(jars) < len(_JARS):
        raise BadUrl(f"hdfs: {folder} lacks one of {', '.join(_JARS)}: install PySpark with its jars")
    return jars


def _settings_folders() -> list[str]:
    """The folder of the cluster's settings, if there is one."""
    given, home = os.environ.get("HADOOP_CONF_DIR"), os.environ.get("HADOOP_HOME")
    folder = given or (f"{home}/etc/hadoop" if home else None)
    return [folder] if folder else []


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What the NameNode knows of a file or folder."""

    name: str
    """The last part of its path."""
    file_id: int
    """Never given to another file, also not to one of the same name."""
    length: int
    """Of a file that is open for writing: what was complete when its last block was begun, or first synced."""
    modified: int
    """Milliseconds of the NameNode's clock."""
    is_open: bool
    """Whether somebody writes it, or died doing so."""


@dataclass(frozen=True, slots=True)
class DataNodeInfo:
    """A DataNode that is alive."""

    address: str
    """Its transfer address, `ip:port`."""
    rack: str


# --- streams ----------------------------------------------------------------------------------------------------------


class OutputStream:
    """A file that is being written. Used by one thread at a time."""

    def __init__(self, client: Client, path: str, stream: Any) -> None:
        self.path = path
        self._client = client
        self._stream = stream
        self._channel: Any = None
        # Finding a Java method takes longer than calling it.
        self._write, self._hflush, self._hsync = stream.write, stream.hflush, stream.hsync
        self._replicas = stream.getCurrentBlockReplication

    @property
    def file_id(self) -> int:
        """The id that the NameNode has given it."""
        return int(self._innermost().getFileId())

    def write(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        """Append *data*, or a part of it; it need not have reached anybody when this returns."""
        size = (len(data) if end is None else min(end, len(data))) - start
        with _explained(self.path):
            if size < _DIRECT_FROM:
                self._write(data[start : start + size])
                return
            if self._channel is None:
                self._channel = jpype.JClass("java.nio.channels.Channels").newChannel(self._stream)
            for piece in range(start, start + size, _PIECE):
                memory = _memory_of(data, piece, min(_PIECE, start + size - piece))
                self._channel.write(jpype.nio.convertToDirectBuffer(memory))
                self._client.got_on = time.monotonic()

    def append(self, data: bytes, *, to_disk: bool) -> int:
        """`write`, then `hsync` or `hflush`; how many DataNodes have it. In one, because it is done so often."""
        try:
            if len(data) < _DIRECT_FROM:
                self._write(data)
            else:
                self.write(data)
            self._hsync() if to_disk else self._hflush()
            self._client.got_on = time.monotonic()
            return int(self._replicas())
        except jpype.JException as error:
            raise _explain(self.path, error) from error

    def hflush(self) -> None:
        """Return when all that was written is in the memory of every DataNode of the pipeline, and visible."""
        with _explained(self.path):
            self._hflush()
        self._client.got_on = time.monotonic()

    def hsync(self) -> None:
        """Return when all that was written is on the disk of every DataNode of the pipeline, and visible."""
        with _explained(self.path):
            self._hsync()
        self._client.got_on = time.monotonic()

    def pipeline(self) -> list[str]:
        """The transfer addresses of the DataNodes that the open block goes to, in order; none before the first sync."""
        with _explained(self.path):
            nodes = self._innermost().getPipeline()
            return [str(node.getXferAddr()) for node in nodes] if nodes is not None else []

    def _innermost(self) -> Any:
        """The stream that knows of blocks; in an encryption zone, another one lies around it."""
        stream = self._stream.getWrappedStream()
        return stream.getWrappedStream() if hasattr(stream, "getWrappedStream") else stream

    def replicas(self) -> int:
        """How many DataNodes the open block goes to now."""
        with _explained(self.path):
            return int(self._replicas())

    def close(self) -> None:
        """Complete the file. Raise `Unavailable` unless the NameNode confirms that it is.

        The client's own `close` returns in peace when it is called again after it failed, although the file is open.
        """
        with _explained(self.path):
            self._stream.close()
        if not self._client.is_closed(self.path):
            self._client.recover_lease(self.path)
            raise Unavailable(f"{self.path}: was not completed, although closing it did not fail: write it again")

    def abandon(self) -> None:
        """Let go of a file that is not to be written any more, complete or not; nothing is raised."""
        with suppress(Unavailable), _explained(self.path):
            self._stream.close()
        with suppress(Unavailable):
            if not self._client.is_closed(self.path):
                self._client.recover_lease(self.path)


class InputStream:
    """A file as it was when it was opened, up to what was visible then. Any thread may read."""

    def __init__(self, path: str, stream: Any, length: int) -> None:
        self.path = path
        self._stream = stream
        self.length = length
        """The bytes that can be read: of a file that is being written, those flushed or synced so far."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at *offset*, which must all be there."""
        data = bytes(size)
        if size:
            with _explained(self.path):
                # Nobody else has seen these bytes yet: filling them saves a copy of everything that is read.
                self._stream.readFully(jpype.JLong(offset), jpype.nio.convertToDirectBuffer(_memory_of(data, 0, size)))
        return data

    def close(self) -> None:
        """Give back its connections."""
        with suppress(Unavailable), _explained(self.path):
            self._stream.close()


# --- the client -------------------------------------------------------------------------------------------------------


def locate(uri: str, path: str, settings: Mapping[str, str], user: str | None = None) -> tuple[str, str]:
    """The HDFS that *path* of *uri* is in, and its path there: another one where a mount table (ViewFS) says so."""
    start_jvm()
    with _explained(uri):
        conf = _configuration(settings)
        default = jpype.JClass("org.apache.hadoop.fs.FileSystem").getDefaultUri(conf)
        mounted = uri == "hdfs:///" and str(default.getScheme()) == "viewfs"
        if not mounted and "ViewFileSystem" not in str(conf.get("fs.hdfs.impl", "")):
            return uri, path
        whose = () if user is None else (user,)
        where = default if mounted else jpype.java.net.URI(uri)
        view = jpype.JClass("org.apache.hadoop.fs.FileSystem").newInstance(where, conf, *whose)
        try:
            return _resolved(view, path)
        finally:
            view.close()


def _resolved(view: Any, path: str) -> tuple[str, str]:
    """Where a mount table leads: what is there of *path*, and the rest as it is."""
    missing, there = "", path
    while True:
        try:
            found = view.resolvePath(jpype.JClass("org.apache.hadoop.fs.Path")(there)).toUri()
            break
        except jpype.JException as error:
            if not isinstance(error, jpype.JClass("java.io.FileNotFoundException")) or there == "/":
                raise
            there, _, name = there.rpartition("/")
            missing, there = f"/{name}{missing}", there or "/"
    if str(found.getScheme()) != "hdfs":
        raise BadUrl(f"hdfs: the mount table leads {path} to {found}, not into an HDFS: mount one there")
    return f"hdfs://{found.getAuthority()}", str(found.getPath()).rstrip("/") + missing


def _configuration(settings: Mapping[str, str]) -> Any:
    """The cluster's settings, with *settings* on top."""
    conf = jpype.JClass("org.apache.hadoop.conf.Configuration")()
    for name, value in settings.items():
        conf.set(name, value)
    return conf


class Client:
    """A connection to one HDFS. Paths are absolute. Everything raises `Unavailable` with one line that says why."""

    def __init__(self, uri: str, settings: Mapping[str, str], user: str | None = None) -> None:
        """Connect to *uri*, `hdfs://host:port` or `hdfs://nameservice`, with *settings* on top of the cluster's.

        A *user* is who to be on a cluster that believes what it is told; else it is whoever runs this, or has a ticket.
        """
        start_jvm()
        self.uri = uri.rstrip("/")
        self.got_on = 0.0
        """When a file that is being written last got on, as `time.monotonic` tells it."""
        self._path = jpype.JClass("org.apache.hadoop.fs.Path")
        self._no_name = jpype.JArray(jpype.JByte)(0)
        self._data_node_proxies: dict[str, Any] = {}
        with _explained(uri):
            self._conf = conf = _configuration(settings)
            # What is below a mount table is an HDFS as any other.
            conf.set("fs.hdfs.impl", "org.apache.hadoop.hdfs.DistributedFileSystem")
            where = jpype.java.net.URI(uri)
            whose = () if user is None else (user,)
            self._fs = jpype.JClass("org.apache.hadoop.fs.FileSystem").newInstance(where, conf, *whose)
            self._dfs = self._fs.getClient()
            provider = conf.get(f"dfs.client.failover.proxy.provider.{self._fs.getUri().getAuthority()}", "")
            self._observers = "ObserverRead" in str(provider)
            """Whether reading calls may be answered by a NameNode that lags behind."""

    def close(self) -> None:
        """Let go of the servers. Files that are still open are closed."""
        with suppress(Unavailable), _explained(self.uri):
            self._fs.close()

    # Names

    def listing(self, folder: str, *, of_one_moment: bool = True) -> list[FileStatus] | None:
        """What is in *folder*, as it was at one moment; None if there is no such folder.

        That may take long where much is in it and changes; else it has at least what was there throughout.
        """
        if self._observers:  # they lag behind; after this they answer when they have what had happened by now
            with _explained(self.uri + folder):
                _again(self._fs.msync)
        before: list[FileStatus] | None = None
        while True:
            found, pages = self._listing(folder)
            # What comes in several answers may change between them.
            if pages < 2 or found == before or not of_one_moment:
                return found
            before = found

    def _listing(self, folder: str) -> tuple[list[FileStatus] | None, int]:
        found: list[FileStatus] = []
        after, pages = self._no_name, 0
        with _explained(self.uri + folder):
            while True:
                page = _again(partial(self._dfs.listPaths, folder, after, True))
                if page is None:
                    return None, 1
                found += [_status(entry) for entry in page.getPartialListing()]
                pages += 1
                if not page.hasMore():
                    return found, pages
                after = page.getLastName()

    def status(self, path: str) -> FileStatus | None:
        """What the NameNode knows of *path*; None if there is nothing."""
        with _explained(self.uri + path):
            found = _again(lambda: self._dfs.getFileInfo(path))
            return None if found is None else _status(found)

    def make_folder(self, path: str) -> None:
        """Create *path* and its missing parents; that it exists is not an error."""
        with _explained(self.uri + path):
            _again(lambda: self._fs.mkdirs(self._path(path)))

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, at once. Raise `Missing` if it is not there, `Exists` if the new one is."""
        with _explained(self.uri + old):
            self._dfs.rename(old, new, jpype.JArray(jpype.JClass("org.apache.hadoop.fs.Options$Rename"))(0))

    def delete(self, path: str) -> None:
        """Remove a file or a folder with all in it. That there is none is not an error."""
        with _explained(self.uri + path):
            _again(lambda: self._fs.delete(self._path(path), True))

    # Files

    def create(
        self,
        path: str,
        *,
        replication: int,
        block_size: int,
        favoured: Sequence[str] = (),
        no_local: bool = False,
        to_disk: bool = False,
    ) -> OutputStream:
        """Begin a file that does not exist; raise `Exists` if it does.

        It has replicas also in a folder with erasure codes, where `hsync` and `hflush` would do nothing. With
        *to_disk*, each of its blocks is on disk in its place when it ends: `hsync` is about the last one only.
        *favoured* are the transfer addresses of the DataNodes that should have it; others are taken where these cannot.
        With *no_local*, a DataNode on this host is not preferred.
        """
        with _explained(self.uri + path):
            builder = self._fs.createFile(self._path(path)).overwrite(False).recursive()
            builder = builder.replication(jpype.JShort(replication)).blockSize(jpype.JLong(block_size)).replicate()
            if to_disk:
                builder = builder.syncBlock()
            if favoured:
                builder = builder.favoredNodes(_addresses(favoured))
            if no_local:
                builder = builder.noLocalWrite()
            stream = _again(builder.build)  # if the first has made it, this raises `Exists`
            self.got_on = time.monotonic()
            return OutputStream(self, path, stream)

    def open(self, path: str, *, is_open: bool = False) -> InputStream:
        """A file for reading; raise `Missing` if there is none.

        Where the file *is open* for writing, its length is what every DataNode shows of it. One alone may show more, if
        the writer died or is about to see an acknowledgement: that could not be read from the others.
        """
        with _explained(self.uri + path):
            stream = _again(lambda: self._fs.open(self._path(path)))
            length = int(stream.getVisibleLength())
            if is_open and length:
                length = min(length, self._shown_by_all(stream.getAllBlocks()))
            return InputStream(self.uri + path, stream, length)

    def _shown_by_all(self, blocks: Any) -> int:
        """The length of a file up to what every DataNode shows that has its last block, which is being written."""
        block = blocks[len(blocks) - 1]
        shown = []
        for node in block.getLocations():
            with suppress(jpype.JException):  # it is down, or has left the pipeline: what it has does not count
                shown.append(int(self._data_node(node, block).getReplicaVisibleLength(block.getBlock())))
        shown = [length for length in shown if length >= 0]  # one that was started again shows nothing: -1
        if not shown:
            raise Unavailable(f"{self.uri}: no DataNode that has the block can be reached: start it again")
        return int(block.getStartOffset()) + min(shown)

    def _data_node(self, node: Any, block: Any) -> Any:
        """A proxy of a DataNode that may be asked for a block; kept, since making one takes long."""
        key = f"{node.getXferAddr()} {block.getBlock()}"
        proxy = self._data_node_proxies.get(key)
        if proxy is None:
            if len(self._data_node_proxies) >= _MOST_PROXIES:
                self._data_node_proxies.clear()  # Java closes the connections when they are idle
            make = jpype.JClass("org.apache.hadoop.hdfs.DFSUtilClient").createClientDatanodeProtocolProxy
            timeout = int(self._dfs.getConf().getSocketTimeout())
            proxy = self._data_node_proxies[key] = make(node, self._conf, timeout, False, block)
        return proxy

    def may_stay_in_memory(self, path: str) -> bool:
        """Whether files in the folder *path*, or the file, have a storage policy by which a sync may mean no disk.

        What does not exist yet will have that of what is around it.
        """
        with _explained(self.uri + path):
            while (found := _again(partial(self._dfs.getFileInfo, path or "/"))) is None:
                path = path.rpartition("/")[0]
            return int(found.getStoragePolicy()) == _LAZY_PERSIST

    def is_closed(self, path: str) -> bool:
        """Whether a file is complete: nobody writes it, nor died doing so."""
        with _explained(self.uri + path):
            return bool(_again(lambda: self._fs.isFileClosed(self._path(path))))

    def nudge(self, path: str) -> None:
        """Have a file completed whose writer has been silent for a minute; one that is alive does not notice."""
        try:
            # Creating a file that exists makes the NameNode look whether its writer is still there.
            out = self.create(path, replication=self.default_replication(), block_size=_USUAL_BLOCK)
        except Unavailable:
            return
        out.abandon()  # it had just been removed
        self.delete(path)

    def recover_lease(self, path: str) -> bool:
        """Take a file from whoever writes it and have it completed; True if it already is, else that takes a moment."""
        with _explained(self.uri + path):
            return bool(self._fs.recoverLease(self._path(path)))

    # Servers

    def default_replication(self) -> int:
        """How many replicas a file gets if nobody says otherwise."""
        with _explained(self.uri):
            return int(_again(self._dfs.getServerDefaults).getReplication())

    def is_highly_available(self) -> bool:
        """Whether the URI names a service of several NameNodes rather than one host."""
        with _explained(self.uri):
            utils = jpype.JClass("org.apache.hadoop.hdfs.HAUtilClient")
            return bool(utils.isLogicalUri(self._conf, self._fs.getUri()))

    def name_nodes(self) -> list[str]:
        """The host of the NameNode, or of each of the service that the URI names."""
        with _explained(self.uri):
            here = self._fs.getUri()
            if not self.is_highly_available():
                return [str(here.getHost())]
            services = jpype.JClass("org.apache.hadoop.hdfs.DFSUtilClient").getHaNnRpcAddresses(self._conf)
            return [str(address.getHostString()) for address in services.get(here.getAuthority()).values()]

    def data_nodes(self) -> list[DataNodeInfo]:
        """The DataNodes that are alive."""
        with _explained(self.uri):
            live = jpype.JClass("org.apache.hadoop.hdfs.protocol.HdfsConstants$DatanodeReportType").LIVE
            nodes = _again(lambda: self._fs.getDataNodeStats(live))
            return [DataNodeInfo(str(node.getXferAddr()), str(node.getNetworkLocation())) for node in nodes]


# --- helpers ----------------------------------------------------------------------------------------------------------


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn a Java exception inside the block into an error of ours."""
    if _started_in != os.getpid():
        raise Closed("hdfs: after a fork the JVM cannot be used: spawn a fresh process")
    try:
        yield
    except jpype.JException as error:
        raise _explain(where, error) from error


def _again(ask: Callable[[], Any]) -> Any:
    """What the NameNode answers, asked once more if it hangs up.

    All clients of a process share their connections. That the NameNode was started again is noticed on one that was
    idle only when it is used.
    """
    try:
        return ask()
    except jpype.JException as error:
        if error.getClass().getName() != "java.io.EOFException":
            raise
        return ask()


def _explain(where: str, error: Any) -> Unavailable:
    name = error.getClassName() if hasattr(error, "getClassName") else error.getClass().getName()
    return explain(where, str(name), str(error.getMessage()))


def _status(found: Any) -> FileStatus:
    blocks = found.getLocatedBlocks() if hasattr(found, "getLocatedBlocks") else None
    return FileStatus(
        name=str(found.getLocalName()),
        file_id=int(found.getFileId()),
        length=int(found.getLen()),
        modified=int(found.getModificationTime()),
        is_open=blocks is not None and bool(blocks.isUnderConstruction()),
    )


def _addresses(nodes: Sequence[str]) -> Any:
    address = jpype.JClass("java.net.InetSocketAddress")
    pairs = (node.rpartition(":") for node in nodes)
    return jpype.JArray(address)([address(host, int(port)) for host, _, port in pairs])


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def _memory_of(data: bytes, start: int, size: int) -> memoryview:
    """A part of the memory of *data* as a writable buffer: Java takes no other. Keep *data* as long as it is used."""
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    view: memoryview = _view(address + start, size, _PYBUF_WRITE)
    return view
