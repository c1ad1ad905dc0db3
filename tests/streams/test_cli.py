"""`safekeeper stream ls | tail | trim`."""

import json
import subprocess
import sys
from contextlib import closing

import pytest

from safekeeper.dev.redis import RedisServer
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.testing.sending import numbered


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=("store", "redis"))
def place(request, tmp_path):
    """Where streams are, with what stands before their options."""
    if request.param == "store":
        return f"store:log://{tmp_path}/store?"
    server = request.getfixturevalue("redis")
    with server.client() as client:
        client.flushall()
    return f"{server.url}?"


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "safekeeper.cli", "stream", *words], capture_output=True, text=True, timeout=120
    )


def said(*words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def words(place):
    url = f"{place}stream=words"
    with closing(open_outlet(url, readers=["counter", "audit"])) as outlet:
        for number in range(1, 13):
            outlet.send([StreamElement(number, b"body %d\n" % number, b"key")])
        with closing(open_inlet(url, reader="counter")) as inlet:
            inlet.acknowledge(5)
    with closing(open_outlet(f"{place}stream=other")) as outlet:
        outlet.send(numbered(1, b"\xff\x1b[31m"))
    return url


def test_ls_shows_streams_with_their_readers(words, place):
    assert said("ls", place.rstrip("?")) == [
        "other: 1 to 1 (1 elements)",
        "words: 1 to 12 (12 elements)",
        "  counter: acknowledged 5, 7 behind",
        "  audit: acknowledged 0, 12 behind",
    ]
    (found,) = json.loads("".join(said("ls", "--json", words)))
    assert found == {"name": "words", "first": 1, "last": 12, "readers": {"counter": 5, "audit": 0}}


def test_ls_says_that_there_is_nothing(place):
    done = run("ls", place.rstrip("?"))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "there are no streams\n")


def test_tail_prints_the_last_elements_in_a_form_that_does_nothing_to_a_terminal(words, place):
    assert said("tail", "-n", "2", words) == ["11\tkey\tbody 11%0A", "12\tkey\tbody 12%0A"]
    assert [line.split("\t")[0] for line in said("tail", words)] == [str(n) for n in range(3, 13)]
    assert said("tail", "--after", "11", words) == ["12\tkey\tbody 12%0A"]
    assert [json.loads(line) for line in said("tail", "--json", f"{place}stream=other")] == [
        {"number": 1, "key": "", "body": "%FF%1B[31m"}
    ]
    assert said("tail", f"{place}stream=nobody") == []


def test_tail_goes_on_with_what_comes(words):
    command = [sys.executable, "-m", "safekeeper.cli", "stream", "tail", "-n", "1", "-f", words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "12\tkey\tbody 12%0A\n"
            with closing(open_outlet(words, readers=["counter", "audit"])) as outlet:
                outlet.send(numbered(13, b"new"))
            assert process.stdout.readline() == "13\t\tnew\n"
        finally:
            process.kill()


def test_trim_forgets_what_all_have_acknowledged(words):
    with closing(open_inlet(words, reader="audit")) as inlet:
        inlet.acknowledge(3)
    assert said("trim", words) == ["words: 4 to 12 (9 elements)"]


def test_trim_takes_nothing_from_a_reader_unless_it_is_told_to(words):
    done = run("trim", "--upto", "8", words)
    assert done.returncode == 2
    assert done.stderr == "safekeeper: counter, audit would lose elements of words: --force says that this is wanted\n"
    assert said("trim", "--upto", "8", "--force", words) == ["words: 9 to 12 (4 elements)"]


@pytest.mark.parametrize(
    ("words_given", "says"),
    [
        (("trim", "stream=nobody"), "there is no such stream"),
        (("trim", "stream=other"), "has no readers that say what can go: give --upto"),
        (("tail", "--after", "x", "stream=words"), "x is not a position"),
        (("tail", ""), "names no stream"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, words_given, says):
    *options, stream = words_given
    place = f"store:log://{tmp_path}/store?"
    with closing(open_outlet(f"{place}stream=other")) as outlet:
        outlet.send(numbered(1, b"x"))
    done = run(*options, f"{place}{stream}".rstrip("?"))
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
