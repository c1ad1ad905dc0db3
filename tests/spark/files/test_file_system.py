"""`safekeeper://` for Hadoop: what Java writes Python reads, and the reverse; and what checkpoints need of it."""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError

from safekeeper.dev.redis import RedisServer
from safekeeper.integrations.filesystem import layout

PART = 16 << 20
CONTENT = random.Random(3).randbytes(PART + 5)


def written(stream, content):
    stream.write(bytearray(content))
    stream.close()


def raises(name, text=""):
    return pytest.raises(Py4JJavaError, match=rf"(?s){name}.*{text}")


def parts(fs, volume):
    return list(fs.store.keys(layout.content_group(volume)))


@pytest.fixture
def conf(jvm, url):
    return jvm.conf(url)


@pytest.fixture
def at(jvm, conf):
    """Makes paths in a volume of this test's own."""
    volume = uuid.uuid4().hex
    files = jvm.files(f"safekeeper://{volume}/", conf)

    def at(name=""):
        return jvm.path(f"safekeeper://{volume}/{name}")

    at.files, at.volume = files, volume
    return at


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, PART, PART + 5])
def test_what_java_writes_python_reads_and_the_other_way_round(at, fs, size):
    content = CONTENT[:size]
    written(at.files.create(at("q/state/0/1.zip"), True), content)
    assert fs.cat(f"{at.volume}/q/state/0/1.zip") == content
    fs.pipe(f"{at.volume}/p/0", content)
    stream = at.files.open(at("p/0"))
    assert bytes(stream.readAllBytes()) == content
    stream.close()
    status = at.files.getFileStatus(at("p/0"))
    assert (status.getLen(), status.isDirectory()) == (size, False)
    assert abs(status.getModificationTime() / 1000 - time.time()) < 600


def test_a_file_is_read_from_anywhere(at):
    written(at.files.create(at("f"), True), CONTENT)
    with_seek = at.files.open(at("f"))
    for position in (PART - 2, 3, PART, 0):
        with_seek.seek(position)
        assert bytes(with_seek.readNBytes(4)) == CONTENT[position : position + 4]
    with raises("EOFException", "there is no position"):
        with_seek.seek(len(CONTENT) + 1)
    with_seek.close()
    with raises("IOException", "closed"):
        with_seek.read()


def test_a_directory_is_listed_with_sizes_and_times_and_deleted_with_all_in_it(at, fs):
    for name in ("b", "a", "strange: 100% name"):
        written(at.files.create(at(f"d/{name}"), True), b"x" * len(name))
    at.files.mkdirs(at("d/empty/below"))
    found = [(one.getPath().getName(), one.isDirectory(), one.getLen()) for one in at.files.listStatus(at("d"))]
    assert found == [("a", False, 1), ("b", False, 1), ("empty", True, 0), ("strange: 100% name", False, 18)]
    (one,) = at.files.listStatus(at("d/a"))
    assert one.getPath().getName() == "a"
    with raises("FileNotFoundException"):
        at.files.listStatus(at("nothing"))
    with raises("PathIsNotEmptyDirectoryException"):
        at.files.delete(at("d"), False)
    assert at.files.delete(at("d"), True)
    assert not at.files.delete(at("d"), True)
    assert not at.files.exists(at("d"))
    assert fs.ls(at.volume) == []


def test_a_file_and_a_directory_do_not_take_each_others_place(at):
    written(at.files.create(at("d/f"), True), b"")
    with raises("FileAlreadyExistsException"):
        at.files.create(at("d"), True)
    with raises("ParentNotDirectoryException"):
        at.files.mkdirs(at("d/f/g"))
    with raises("PathIsDirectoryException"):
        at.files.open(at("d"))
    with raises("FileNotFoundException"):
        at.files.open(at("nothing"))


def test_of_two_that_create_a_file_the_second_is_told_when_it_closes(at, fs):
    first, second = at.files.create(at("f"), False), at.files.create(at("f"), False)
    second.write(bytearray(CONTENT))
    written(first, b"first")
    with raises("FileAlreadyExistsException"):
        second.close()
    assert fs.cat(f"{at.volume}/f") == b"first"
    assert parts(fs, at.volume) == []
    with raises("FileAlreadyExistsException"):
        at.files.create(at("f"), False)


def test_a_file_whose_write_failed_is_not_stored_when_it_is_closed(jvm, at, fs):
    """A task is killed in a write, and whoever opened the file closes it in a `finally`."""
    written(at.files.create(at("f"), True), b"old")
    stream, thread = at.files.create(at("f"), True), jvm.java.java.lang.Thread
    thread.currentThread().interrupt()
    with raises("IOException"):
        stream.write(bytearray(CONTENT))
    thread.interrupted()
    with raises("IOException", "a write to it has failed"):
        stream.close()
    stream.close()
    assert fs.cat(f"{at.volume}/f") == b"old"
    assert parts(fs, at.volume) == []


def test_what_is_not_there_says_so(at):
    with raises("UnsupportedOperationException", "has no rename.*checkpointFileManagerClass"):
        at.files.rename(at("a"), at("b"))
    with raises("UnsupportedOperationException", "has no append"):
        at.files.append(at("a"))


def test_bad_settings_are_told(jvm, url):
    for settings, text in (
        ({"url": ""}, "which store has the files"),
        ({"url": "nowhere://x"}, "nowhere"),
        ({"url": url, "retryMs": "soon"}, "fs.safekeeper.retryMs=soon: it takes a number"),
        ({"url": url, "agentSilentMs": "1"}, "a number from 3000 on"),
    ):
        given = {"url": url, **settings}
        with raises("Exception", text):
            jvm.files("safekeeper://main/", jvm.conf(**given))
    with raises("IOException", "names no volume"):
        jvm.files("safekeeper:///q", jvm.conf(url))


def test_a_checkpoints_files_are_written_once_replaced_or_cancelled(jvm, conf, at, fs):
    manager = jvm.manager(str(at("q").toString()), conf)
    assert manager.createCheckpointDirectory().toString() == at("q").toString()
    assert not manager.isLocal()
    cancelled = manager.createAtomic(at("q/offsets/0"), False)
    cancelled.write(bytearray(CONTENT))
    cancelled.cancel()
    cancelled.close()
    assert not manager.exists(at("q/offsets/0"))
    assert parts(fs, at.volume) == []
    written(manager.createAtomic(at("q/offsets/0"), False), b"v1")
    second = manager.createAtomic(at("q/offsets/0"), False)
    with raises("FileAlreadyExistsException"):
        written(second, b"other")
    written(manager.createAtomic(at("q/state/1.zip"), True), b"old")
    written(manager.createAtomic(at("q/state/1.zip"), True), b"new")
    assert bytes(manager.open(at("q/state/1.zip")).readAllBytes()) == b"new"
    assert [one.getPath().getName() for one in manager.list(at("q"))] == ["offsets", "state"]
    with raises("FileNotFoundException"):
        manager.list(at("nothing"))
    manager.delete(at("q/nothing"))
    manager.delete(at("q"))
    assert not manager.exists(at("q"))


def test_checkpoints_elsewhere_are_written_as_spark_does_it(jvm, conf, tmp_path):
    conf.set("spark.sql.streaming.checkpointFileManagerClass", "io.safekeeper.spark.files.VolumeCheckpoints")
    manager = jvm.manager(f"file://{tmp_path}/q", conf)
    manager.createCheckpointDirectory()
    file = jvm.path(f"file://{tmp_path}/q/offsets/0")
    manager.mkdirs(file.getParent())
    written(manager.createAtomic(file, False), b"v1")
    assert (tmp_path / "q" / "offsets" / "0").read_bytes() == b"v1"
    assert manager.isLocal()
    assert manager.exists(file)
    manager.delete(file)
    assert not list((tmp_path / "q" / "offsets").glob("0"))


def test_a_killed_agent_is_started_again_and_the_file_is_written(jvm, conf, at, fs, agents_of):
    stream = at.files.create(at("f"), False)
    stream.write(bytearray(CONTENT))
    pid = jvm.java.java.lang.ProcessHandle.current().pid()
    for agent in agents_of(pid):
        os.kill(agent, signal.SIGKILL)
    stream.close()
    assert fs.cat(f"{at.volume}/f") == CONTENT


def test_a_file_of_which_a_part_could_not_be_stored_leaves_what_was_there(jvm, url, at, fs, tmp_path, agents_of):
    """Many close what they failed to write: that must not let the half of a file stand in another one's place."""
    written(at.files.create(at("f"), True), b"before")
    python, broken = tmp_path / "python", tmp_path / "broken"
    python.write_text(f'#!/bin/sh\ntest ! -e {broken} && exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    stream = jvm.files(f"safekeeper://{at.volume}/", jvm.conf(url, python=str(python))).create(at("f"), True)
    broken.touch()
    for agent in agents_of(jvm.java.java.lang.ProcessHandle.current().pid()):
        os.kill(agent, signal.SIGKILL)
    with raises("IllegalStateException", "did not start"):
        stream.write(bytearray(CONTENT))
    broken.unlink()
    with raises("IOException", "a write to it has failed"):
        stream.close()
    assert fs.cat(f"{at.volume}/f") == b"before"
    assert parts(fs, at.volume) == []


ROUNDS = 200


@pytest.mark.parametrize("replies", ["whole", "cut"])
def test_of_two_drivers_that_write_a_log_one_wins_each_batch(jvm, start_jvm, url, fs, cutting, replies):
    """Two JVMs with an agent each, as two drivers have on one checkpoint; with `cut`, every other answer is lost
    once the file is written, and asked for again."""
    volume = f"drivers-{replies}"
    where = f"safekeeper://{volume}/q"
    python = {"python": cutting} if replies == "cut" else {}
    jvms = [jvm, start_jvm()]
    managers = [one.manager(where, one.conf(url, **python)) for one in jvms]
    outcomes, begin = [[], []], threading.Barrier(2)

    def drive(who):
        for batch in range(ROUNDS):
            begin.wait(120)
            stream = managers[who].createAtomic(jvms[who].path(f"{where}/offsets/{batch}"), False)
            stream.write(bytearray(b"%d of %d" % (batch, who) * (1 + 2000 * (batch % 3 == 0))))
            try:
                stream.close()
                outcomes[who].append(True)
            except Py4JJavaError as error:
                outcomes[who].append("FileAlreadyExistsException" not in str(error) and error)

    threads = [threading.Thread(target=drive, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [first + second for first, second in zip(*outcomes, strict=True)] == [1] * ROUNDS
    for batch in range(ROUNDS):
        winner = 0 if outcomes[0][batch] else 1
        assert fs.cat(f"{volume}/q/offsets/{batch}").startswith(b"%d of %d" % (batch, winner))
    assert list(fs.files.damaged(volume)) == []


def test_an_agent_that_starts_while_the_store_is_away_waits_for_it(jvm, tmp_path):
    """So a query goes on whose agent and store died together, and one that is started a little too early."""
    with RedisServer(tmp_path / "redis", appendonly="yes", appendfsync="always") as server:
        server.kill()
        with raises("IOException", "the backend cannot be opened: .*nothing listens there"):
            jvm.files("safekeeper://main/", jvm.conf(server.url, retryMs=1000))
        with ThreadPoolExecutor() as pool:
            opening = pool.submit(jvm.files, "safekeeper://main/", jvm.conf(server.url))
            time.sleep(12)  # longer than an agent waits by itself
            server.start()
            files = opening.result()
        written(files.create(jvm.path("safekeeper://main/f"), False), b"x")
        assert files.getFileStatus(jvm.path("safekeeper://main/f")).getLen() == 1


def test_a_backend_that_cannot_create_refuses_checkpoints_with_one_line(jvm, environment, tmp_path):
    url = f"plain://{tmp_path}/store"
    manager = jvm.manager("safekeeper://main/q", jvm.conf(url))
    stream = manager.createAtomic(jvm.path("safekeeper://main/q/metadata"), False)
    with raises("IOException", "this backend cannot create a file .* two drivers .* use another backend"):
        written(stream, b"{}")
    assert not manager.exists(jvm.path("safekeeper://main/q/metadata"))
    written(manager.createAtomic(jvm.path("safekeeper://main/q/state/1.zip"), True), b"x")
