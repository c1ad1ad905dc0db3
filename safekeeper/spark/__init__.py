"""Spark's streaming state in any backend.

    from pyspark.sql import SparkSession
    import safekeeper.spark

    spark = safekeeper.spark.configure(SparkSession.builder, "log:///var/lib/app/state").getOrCreate()

That is all: every stateful query of the session keeps its state there. `docs/spark.md` has the settings, what a commit
does, and how to do the same with `spark-submit` (`python -m safekeeper.spark conf URL` prints what it takes).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import safekeeper
from safekeeper.agent.files import NO_CREATE
from safekeeper.backend import Scope, SupportsCreate
from safekeeper.errors import SafekeeperError
from safekeeper.registry import url_for_workers
from safekeeper.spark.build import BuildError, find_jar, find_tool
from safekeeper.url import Url, guess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CHECKPOINTS",
    "FILES",
    "OPTIONS",
    "PREFIX",
    "PROVIDER",
    "BadSetup",
    "configure",
    "jar",
    "register",
    "setting",
    "settings",
]

PROVIDER = "io.safekeeper.spark.SafeKeeperStateStoreProvider"
"""The value of `spark.sql.streaming.stateStore.providerClass`."""

PREFIX = "spark.sql.streaming.stateStore.safekeeper."
"""What the names of all settings start with; Spark shows a provider none outside `spark.sql.streaming.stateStore.`"""

FILES = "io.safekeeper.spark.files.VolumeFileSystem"
"""The class of Hadoop's file system `safekeeper://`."""

CHECKPOINTS = "io.safekeeper.spark.files.VolumeCheckpoints"
"""The value of `spark.sql.streaming.checkpointFileManagerClass`."""

OPTIONS: dict[str, str] = {
    "python": "the interpreter that runs the agents; the one PySpark uses",
    "queue_bytes": "how many bytes of commits an agent holds at most, and how many of values being read; 128 MiB",
    "agent_start_ms": "how long an agent may take until it is ready; a minute",
    "retry_ms": "for how long a request that does not get on is sent again while agent or store are away; a minute",
    "agent_silent_ms": "how long an agent may say nothing in a request until it counts as hanging; a minute",
    "lease_ms": "how long to wait until another task of the executor is done with a partition's state; a minute",
    "codec": "how commits are compressed: zstd, lz4 or none; zstd",
    "value_bytes": "a commit that is larger is written in parts; 16 MiB, and 64 MiB at the most",
    "memory_bytes": "how many bytes outside the heap the indexes of all states in an executor may have; what the "
    "machine or the container has beyond the heap, less an eighth",
    "clean_at": "how many times the size of the state a restart may have to read before commits move old records; 2",
    "least_commit_bytes": "a commit counts as at least so large when that is decided; 64 KiB",
    "moved_checkpoint": "when a checkpoint folder is not where its state was first written: refuse or adopt; refuse",
}
"""What `configure` takes besides the URL, and the default. As a setting, `queue_bytes` is `PREFIX` + `queueBytes`."""

_OF_AGENTS = ("python", "queue_bytes", "agent_start_ms", "retry_ms", "agent_silent_ms")
"""The options that the file system has, too."""

_SECRETS = "(?i)secret|password|token|access[.]?key|credential|(stateStore|fs)[.]safekeeper[.]url"
"""Spark's own default for what its UI and logs do not show, and the URL, for URLs that hold a password."""


class BadSetup(SafekeeperError):
    """Spark cannot use the backend as things are set up. The message says what to change."""


def jar() -> str:
    """The path of the bridge's jar for the Spark in use. It is compiled at first use, which takes some seconds.

    Raise `BadSetup` when PySpark or a JDK is missing, or there is no bridge for this Spark.
    """
    with _build_errors_as_bad_setup():
        return str(find_jar())


def setting(option: str) -> str:
    """The full name of the setting that *option* becomes."""
    first, *others = option.split("_")
    return PREFIX + first + "".join(map(str.capitalize, others))


def settings(url: str, *, checkpoints: bool = False, **options: object) -> dict[str, str]:
    """What Spark must be told, by the names of its settings: for `spark-submit --conf` and `spark-defaults.conf`.

    *checkpoints* and *options* are those of `configure`; one that does not exist raises `BadSetup`.
    """
    for name in options:
        if name not in OPTIONS:
            raise BadSetup(f"there is no option {name!r}{guess(name, list(OPTIONS))}; there are: {', '.join(OPTIONS)}")
    secrets = {"spark.redaction.regex": _SECRETS} if Url.parse(url).password else {}
    return {
        "spark.jars": jar(),
        "spark.sql.streaming.stateStore.providerClass": PROVIDER,
        setting("url"): url,
        **secrets,
        **{setting(name): str(value) for name, value in options.items()},
        **(_settings_of_files(url, options) if checkpoints else {}),
    }


def _settings_of_files(url: str, options: dict[str, object]) -> dict[str, str]:
    """What lets checkpoints lie in `safekeeper://`, with the options that make it share agents with the state store."""
    shared = {name: options[name] for name in _OF_AGENTS if name in options}
    prefix = "spark.hadoop.fs.safekeeper."
    return {
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        f"{prefix}impl": FILES,
        f"{prefix}url": url,
        **{prefix + setting(name).removeprefix(PREFIX): str(value) for name, value in shared.items()},
    }


def configure(
    builder: SparkSession.Builder, url: str, *, checkpoints: bool = False, **options: object
) -> SparkSession.Builder:
    """Let every stateful query of the session that *builder* makes keep its state in the backend at *url*.

    With *checkpoints*, `safekeeper://VOLUME/PATH` is a file system in that backend: a query whose `checkpointLocation`
    is there has offsets, commits, schemas and state in one store, and no other file system is needed.

    Call it before the first session of the process is made: Spark takes its jars when its JVM starts. That the JVM
    runs already is not an error if it has the jar, as under `spark-submit --jars`. *options* are those of `OPTIONS`.

    With an `hdfs:` URL that has `placement=peace` and names no coordinator, one runs in this process from now on.

    What would make queries fail is found here, not in the first batch: `BadUrl` and `Unavailable` come from opening the
    backend, `BadSetup` says what else is wrong.
    """
    chosen: dict[str, object] = getattr(builder, "_options", {})
    if chosen.get("spark.remote") or os.environ.get("SPARK_REMOTE"):
        raise BadSetup(
            "a session of Spark Connect keeps its state where its server says: start the server with what"
            " `python -m safekeeper.spark conf URL` prints"
        )
    is_running = _jvm_runs()
    master = str(chosen.get("spark.master") or _default_master(is_running))
    url = url_for_workers(url)
    check_backend(url, master, checkpoints=checkpoints)
    if _is_local(master) and not (os.environ.get("PYSPARK_PYTHON") or chosen.get("spark.pyspark.python")):
        options.setdefault("python", sys.executable)
    found = settings(url, checkpoints=checkpoints, **options)
    if is_running:
        _check_jvm(found.pop("spark.jars"))
    else:
        with _build_errors_as_bad_setup():
            find_tool("java")
        if jars := chosen.get("spark.jars"):
            found["spark.jars"] = f"{jars},{found['spark.jars']}"
    for name, value in found.items():
        builder.config(name, value)
    return builder


def register(spark: SparkSession) -> None:
    """Let *spark* read stores, and streams.

        spark.read.format("safekeeper").option("url", "log:///var/lib/app").load()
        spark.readStream.format("safekeeper-stream").option("url", "redis://127.0.0.1:6379/0?stream=words").load()

    Of a store there is one row for each id: group, key and value. The option `group` reads one group only. For streams
    see `docs/spark-streams.md`.
    """
    from safekeeper.spark.source import CheckpointSource
    from safekeeper.spark.stream import StreamDataSource

    spark.dataSource.register(CheckpointSource)
    spark.dataSource.register(StreamDataSource)


@contextmanager
def _build_errors_as_bad_setup() -> Iterator[None]:
    try:
        yield
    except BuildError as error:
        raise BadSetup(str(error)) from error


def check_backend(url: str, master: str, *, checkpoints: bool = False) -> None:
    """Open and close the backend at *url*; raise `BadSetup` when the executors of *master* could not share it, or it is
    to have *checkpoints* and cannot create a file only if there is none.

    Whether a backend on one host is enough shows only when the executors are there: the provider checks that.
    """
    with safekeeper.open(url) as backend:
        if backend.scope is Scope.PROCESS and not _is_local(master):
            raise BadSetup(
                f"{Url.parse(url)} is seen by one process only, and {master} has several: choose another backend"
            )
        if checkpoints and not isinstance(backend, SupportsCreate):
            raise BadSetup(f"{Url.parse(url)} takes no checkpoints: {NO_CREATE}")


def _is_local(master: str) -> bool:
    """Whether everything runs in one JVM. `local-cluster[...]` does not."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _jvm_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit started it


def _default_master(is_running: bool) -> str:
    from pyspark import SparkConf, SparkContext

    if not is_running:
        return os.environ.get("MASTER", "local[*]")
    SparkContext._ensure_initialized()
    return SparkConf().get("spark.master", "local[*]") or ""


def _check_jvm(jar: str) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    java = SparkContext._jvm.java.lang  # type: ignore[union-attr]
    try:
        java.Class.forName(PROVIDER, False, java.Thread.currentThread().getContextClassLoader())
    except Py4JJavaError:
        raise BadSetup(
            "Spark's JVM runs already and has no bridge: "
            f"configure before the first session, or submit with --jars {jar}"
        ) from None
