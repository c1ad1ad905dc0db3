"""An option that takes one of several words takes no other, whatever the backend: a typing error in `sync=` must not
make a store that keeps less than was asked for."""

import dataclasses
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

import safekeeper
from safekeeper import BadUrl, Url
from safekeeper.backends.file import FileOptions
from safekeeper.backends.hbase.options import HBaseOptions
from safekeeper.backends.hdfs.options import HdfsOptions
from safekeeper.backends.lmdb.backend import LmdbBackend
from safekeeper.backends.lmdb.options import LmdbOptions
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.memory import MemoryOptions
from safekeeper.backends.objects.options import NetworkOptions, ObjectsOptions, S3Options
from safekeeper.backends.redis.options import RedisOptions
from safekeeper.registry import BUNDLED, backend_class
from safekeeper.url import without_none

OPTIONS = [
    ("memory:x", MemoryOptions),
    ("file:///nowhere/x", FileOptions),
    ("log:///nowhere/x", LogOptions),
    ("lmdb:///nowhere/x", LmdbOptions),
    ("objects+file:///nowhere/x", ObjectsOptions),
    ("objects+http://127.0.0.1:1/x", NetworkOptions),
    ("objects+s3://nowhere/x", S3Options),
    ("redis://127.0.0.1:1/0", RedisOptions),
    ("rediss://127.0.0.1:1/0", RedisOptions),
    ("redis+unix:///nowhere/x", RedisOptions),
    ("hbase://127.0.0.1:1/x", HBaseOptions),
    ("hdfs://127.0.0.1:1/x", HdfsOptions),
]
FIELDS = [
    (url, field.name.replace("_", "-"), without_none(get_type_hints(options)[field.name]))
    for url, options in OPTIONS
    for field in dataclasses.fields(options)
]
WORDS = [(url, name, get_args(hint)) for url, name, hint in FIELDS if get_origin(hint) is Literal]
SWITCHES = [(url, name, ("yes or no",)) for url, name, hint in FIELDS if hint is bool]
NUMBERS = [(url, name) for url, name, hint in FIELDS if hint in (int, float)]


def test_every_bundled_backend_is_here():
    assert {cls for row in BUNDLED for cls in backend_class(row.replace("objects+", "objects+file")).url_options} == {
        options for _, options in OPTIONS
    }
    schemes = {Url.parse(url).scheme for url, _ in OPTIONS}
    assert {row for row in BUNDLED if not row.endswith("+")} <= schemes
    assert {(Url.parse(url).scheme, name) for url, name, _ in WORDS} >= {
        ("lmdb", "sync"),
        ("log", "sync"),
        ("hdfs", "sync"),
    }


@pytest.mark.parametrize(
    ("url", "name", "words"), WORDS + SWITCHES, ids=lambda part: part if isinstance(part, str) else ""
)
def test_an_unknown_word_of_an_option_is_refused_with_the_words_that_it_takes(url, name, words):
    for wrong in ("Always", words[0].upper(), words[0][:-1], f"x{words[0]}", "", "None", "true"):
        with pytest.raises(BadUrl, match=f"it takes {', '.join(words)}$") as caught:
            safekeeper.open(f"{url}?{name}={wrong}")
        assert f"{name}=" in str(caught.value)


@pytest.mark.parametrize(("url", "name"), NUMBERS)
def test_a_number_of_an_option_is_a_finite_number(url, name):
    for wrong in ("nan", "inf", "-inf", "x", ""):
        with pytest.raises(BadUrl, match=r"it takes a number$"):
            safekeeper.open(f"{url}?{name}={wrong}")


def test_a_whole_number_may_be_larger_than_any_float_for_its_backend_to_judge():
    huge = 10**400
    with pytest.raises(BadUrl, match="replication= takes 1 to 512"):
        safekeeper.open(f"hdfs://127.0.0.1:1/x?replication={huge}")
    assert Url.parse(f"redis://127.0.0.1:1/0?connections={huge}").options(RedisOptions).connections == huge


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: LmdbBackend(folder, sync="Always"),
        lambda _: LmdbOptions(sync="Always"),
        lambda _: LogOptions(sync="Always"),
        lambda _: HdfsOptions(sync="HSYNC"),
        lambda _: HBaseOptions(transport="Framed"),
    ],
    ids=["LmdbBackend", "LmdbOptions", "LogOptions", "HdfsOptions", "HBaseOptions"],
)
def test_a_word_that_is_given_in_python_is_checked_too(make, tmp_path):
    with pytest.raises(ValueError, match="it takes"):
        make(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_words_of_an_option_that_may_be_left_out_are_checked():
    @dataclasses.dataclass
    class Options:
        sync: Literal["always", "none"] | None = None

    assert Url.parse("x:?sync=none").options(Options) == Options("none")
    with pytest.raises(BadUrl, match=r"sync=Always in x:\?sync=Always: it takes always, none"):
        Url.parse("x:?sync=Always").options(Options)
