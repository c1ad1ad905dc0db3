"""One line sets up a session, and what is wrong is said before anything starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from safekeeper import BadUrl
from safekeeper.spark import (
    CHECKPOINTS,
    FILES,
    OPTIONS,
    PREFIX,
    PROVIDER,
    BadSetup,
    build,
    configure,
    jar,
    setting,
    settings,
)


def test_the_settings_say_where_the_state_goes():
    assert settings("log:///x", queue_bytes=1 << 20, clean_at=3) == {
        "spark.jars": jar(),
        "spark.sql.streaming.stateStore.providerClass": PROVIDER,
        PREFIX + "url": "log:///x",
        PREFIX + "queueBytes": "1048576",
        PREFIX + "cleanAt": "3",
    }


def test_with_checkpoints_they_say_where_files_go_too():
    found = settings("log:///x", checkpoints=True, queue_bytes=1 << 20, clean_at=3)
    assert {
        name: value for name, value in found.items() if name not in settings("log:///x", queue_bytes=1, clean_at=3)
    } == {
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.hadoop.fs.safekeeper.impl": FILES,
        "spark.hadoop.fs.safekeeper.url": "log:///x",
        "spark.hadoop.fs.safekeeper.queueBytes": "1048576",
    }
    command = [sys.executable, "-m", "safekeeper.spark", "conf", "memory:"]
    printed = subprocess.run([*command, "checkpoints=true"], check=True, capture_output=True, text=True)
    assert "--conf spark.hadoop.fs.safekeeper.url=memory:\n" in printed.stdout
    wrong = subprocess.run([*command, "checkpoints=yes"], check=False, capture_output=True, text=True)
    assert (wrong.returncode, wrong.stderr) == (1, "checkpoints=yes: it takes true or false\n")


def test_a_password_in_the_url_is_hidden_from_sparks_ui_and_logs():
    redacted = settings("redis://:secret@host:6379/0")["spark.redaction.regex"]
    assert re.search(redacted, setting("url"))
    assert re.search(redacted, "spark.hadoop.fs.safekeeper.url")
    assert re.search(redacted, "fs.s3a.access.key")
    assert not re.search(redacted, setting("codec"))


def test_every_option_is_in_the_manual():
    manual = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    settings = manual.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", settings, re.MULTILINE)
    assert rows == ["url", *(setting(option).removeprefix(PREFIX) for option in OPTIONS)]


def test_every_option_is_a_setting_of_the_bridge_and_the_other_way_round():
    java = (build.SOURCES / "io/safekeeper/spark/ProviderSettings.java").read_text()
    known = set(re.findall(r"\{@code (\w+)\}:", java))
    assert {setting(option).removeprefix(PREFIX) for option in OPTIONS} | {"url"} == known


@pytest.mark.parametrize(
    ("url", "master", "options", "error", "says"),
    (
        pytest.param("fil:///x", "local[2]", {}, BadUrl, "did you mean 'file'", id="unknown scheme"),
        pytest.param("file:///x?speed=9", "local[2]", {}, BadUrl, "no option 'speed'", id="unknown URL option"),
        pytest.param(
            "file:///x", "local", {"queue_byte": 1}, BadSetup, "did you mean 'queue_bytes'", id="unknown option"
        ),
        pytest.param("memory:", "spark://host:7077", {}, BadSetup, "one process only", id="cluster"),
        pytest.param(
            "memory:", "local-cluster[2,1,1024]", {}, BadSetup, "one process only", id="local cluster on memory"
        ),
    ),
)
def test_what_cannot_work_is_refused_with_one_line(url, master, options, error, says):
    with pytest.raises(error, match=says) as raised:
        configure(SparkSession.Builder().master(master), url, **options)
    assert "\n" not in str(raised.value)


def run(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **options)


def test_a_backend_that_cannot_create_takes_the_state_but_no_checkpoints(environment, tmp_path):
    code = (
        "from pyspark.sql import SparkSession; from safekeeper.spark import BadSetup, configure\n"
        f"builder, url = SparkSession.builder.master('local'), 'plain://{tmp_path}/store'\n"
        "configure(builder, url)\n"
        "try: configure(builder, url, checkpoints=True)\n"
        "except BadSetup as error: print(error)"
    )
    done = run(code)
    (said,) = done.stdout.splitlines()
    assert said.startswith(f"plain://{tmp_path}/store takes no checkpoints: ")
    assert "SupportsCreate" in said
    assert "use another backend" in said


def test_a_client_of_spark_connect_is_told_that_the_server_decides():
    with pytest.raises(BadSetup, match="keeps its state where its server says: start the server"):
        configure(SparkSession.Builder().remote("sc://127.0.0.1"), "file:///x")


def test_before_the_jvm_starts_the_jar_is_added_to_those_the_session_has(environment):
    code = (
        "from pyspark.sql import SparkSession; from safekeeper.spark import configure\n"
        "builder = SparkSession.builder.master('local').config('spark.jars', 'other.jar')\n"
        "print(configure(builder, 'memory:')._options['spark.jars'])"
    )
    assert run(code).stdout.strip() == f"other.jar,{jar()}"


def test_a_jvm_that_has_the_bridge_needs_no_jar(spark, tmp_path):
    builder = configure(SparkSession.Builder().master("local[2]"), f"file://{tmp_path}")
    assert builder._options[PREFIX + "url"] == f"file://{tmp_path}"
    assert "spark.jars" not in builder._options


def test_a_jvm_that_runs_without_the_bridge_is_refused(quick):
    code = (
        "from pyspark.sql import SparkSession; from safekeeper.spark import configure\n"
        f"SparkSession.builder.master('local').config(map={quick!r}).getOrCreate()\n"
        "try: configure(SparkSession.builder, 'memory:')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = run(code).stdout.strip()
    assert said == (
        "BadSetup Spark's JVM runs already and has no bridge: "
        f"configure before the first session, or submit with --jars {jar()}"
    )


def test_without_java_it_is_said_before_spark_says_it(monkeypatch, tmp_path):
    code = (
        "from pyspark.sql import SparkSession; from safekeeper.spark import configure\n"
        "try: configure(SparkSession.builder, 'memory:')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    jar()  # is in the cache: only java is missing
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    said = run(code).stdout
    assert said.startswith(f"BadSetup there is no java in JAVA_HOME={tmp_path}: install a JDK")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    (
        (["jar"], 0, r"^/.*safekeeper-spark-.*\.jar\n$"),
        (
            ["conf", "memory:", "codec=zstd"],
            0,
            r"(?s)^--conf spark.jars=/.*url=memory:\n--conf .*codec=zstd\n$",
        ),
        (
            ["conf", "--properties", "memory:", "python=/a b\\c"],
            0,
            r"(?s)^spark.jars /.*\.jar\n.*url memory:\nspark.*python /a b\\\\c\n$",
        ),
        (["conf", "--properties", "fil:///x"], 1, "did you mean 'file'"),
        (["conf", "fil:///x"], 1, "did you mean 'file'"),
        (["conf", "memory:", "codex=zstd"], 1, "did you mean 'codec'"),
        (["conf", "--properties"], 2, "conf --properties URL"),
        (["conf"], 2, "python -m safekeeper.spark conf URL"),
        (["conf", "memory:", "codec"], 2, "python -m safekeeper.spark conf URL"),
    ),
    ids=(
        *("jar", "conf", "properties", "properties of a bad URL", "bad URL", "bad option"),
        *("properties of no URL", "no URL", "no value"),
    ),
)
def test_the_command_prints_what_spark_submit_takes(arguments, code, says):
    done = subprocess.run(
        [sys.executable, "-m", "safekeeper.spark", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert re.search(says, done.stdout if code == 0 else done.stderr)
