import os
import re
from dataclasses import dataclass
from typing import Literal

import pytest

import safekeeper
from safekeeper import BadUrl, Size, Survives, Url
from safekeeper.registry import BUNDLED, Bundled
from safekeeper.testing.entry_point import write_entry_points
from safekeeper.url import show_url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no URL"),
        ("no-scheme", "write a scheme first"),
        ("/var/lib/app", "write a scheme first"),
        ("://x", "write a scheme first"),
        ("nosuch:///x", "no backend for nosuch:.* there are: "),
        ("fil:///x", "did you mean 'file'"),
        ("file://var/lib/app", "three slashes, file:///var/lib/app"),
        ("file:", "has no path"),
        ("file:///x?sync=always", "has no option 'sync'"),
        ("file:///x?a", "is no URL"),
        ("file:///x?a=1&a=2", "an option twice"),
        ("file:///x#y", "write it as %23"),
        ("file:///x?assert=fire", "it takes process, os, power, host"),
        ("file:///a%00b", "NUL"),
        ("log:///", "the root of all files: name a folder"),
        ("lmdb:///.", "the root of all files: name a folder"),
        ("log:///~/x%20y", f"'~' is not expanded in a URL: write log://{os.path.expanduser('~')}/x%20y$"),
        ("file:~/x", f"'~' is not expanded in a URL: write file://{os.path.expanduser('~')}/x$"),
        ("objects+file:///~nobody-here/x", "'~' is not expanded in a URL: write the whole path"),
        ("redis://h:port/0", "is no URL"),
        ("redis://[::1", "is no URL"),
    ],
)
def test_a_bad_url_is_refused_with_one_line_that_says_what_to_do(text, says):
    with pytest.raises(BadUrl, match=says) as caught:
        safekeeper.open(text)
    assert "\n" not in str(caught.value)


def test_a_missing_driver_names_the_command_that_installs_it(monkeypatch, tmp_path):
    row = Bundled("needs_a_driver", "X", "no_such_driver", "nosuch", "host", "nothing", "")
    monkeypatch.setitem(BUNDLED, "needy", row)
    (tmp_path / "needs_a_driver.py").write_text("import no_such_driver")
    monkeypatch.setattr("safekeeper.backends.__path__", [str(tmp_path)])
    with pytest.raises(BadUrl, match=r"needs the module no_such_driver: pip install 'safekeeper\[nosuch\]'"):
        safekeeper.open("needy:///x")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("log:///var/lib/app", Url("log", "/var/lib/app")),
        ("file:state", Url("file", "state")),
        ("file:///with%20space%3F", Url("file", "/with space?")),
        ("memory:", Url("memory", "")),
        ("redis://h:6379/0?a=1", Url("redis", "/0", "h", 6379, query={"a": "1"})),
        ("rediss://u:p%40@h/0", Url("rediss", "/0", "h", user="u", password="p@")),
        ("objects+s3://bucket/prefix", Url("objects+s3", "/prefix", "bucket")),
        ("hdfs://[::1]:8020/c", Url("hdfs", "/c", "::1", 8020)),
    ],
)
def test_a_url_is_taken_apart(text, url):
    assert Url.parse(text) == url


PASSWORDS = {
    "plain": "redis://me:hush@h:1/0?a=1",
    "escaped": "redis://me:hush%2F%40@h/0",
    "no user": "redis://:hush@h/0",
    "an option": "redis://h/0?password=hush&a=1",
    "several options": "objects+s3://h/0?access-key=hush&aws_SECRET=hush",
}


@pytest.mark.parametrize("text", PASSWORDS.values(), ids=PASSWORDS)
@pytest.mark.parametrize("show", [str, repr, "{}".format, "{!r}".format])
def test_a_url_shows_no_password(text, show):
    url = Url.parse(text)
    assert "hush" not in show(url)
    assert "hush" not in show([url, {"url": url}])
    assert "hush" not in show_url(text)


def test_a_url_shown_in_a_message_is_complete_but_for_the_password():
    assert (
        str(Url.parse("redis://me:hush@h:1/0?a=1"))
        == show_url("redis://me:hush@h:1/0?a=1")
        == "redis://me:***@h:1/0?a=1"
    )
    assert show_url("redis://h/0?password=hush&a=1") == "redis://h/0?password=***&a=1"
    assert show_url("log:relative/path?sync=none") == "log:relative/path?sync=none"


NOT_ESCAPED = [
    *("redis://me:QUIET@h:port/0", "redis://me:QU@ET@h/0?a", "redis://:QUIET@h/0#x", "redis:me:QUIET@h/0"),
    *("redis://me:QU/ET@h/0", "redis://me:QU/ET@h:6379/0?a=1", "redis://:QU/ET@h", "redis://me:QU?ET@h/0"),
    *("redis://me:QU#ET@h/0", "redis://me:12/ET@h/0", "redis://me:12?ET=QU@h/0", "redis://me:1@2/ET@h/0"),
    *(
        "redis://a@b.c:12/ET@h/0",
        "redis://me:x@h/0?secret=QU/ET#x",
        "redis:me:QU/ET@h/0",
        "no such://me:QUIET@h/0",
        "redis://me:QU\u2100ET@h/0",
    ),
]


@pytest.mark.parametrize("text", NOT_ESCAPED)
def test_a_url_that_is_none_is_shown_without_its_password(text):
    with pytest.raises(BadUrl) as caught:
        safekeeper.open(text)
    for shown in (str(caught.value), show_url(text)):
        assert "***@h" in shown
        assert not re.search("QU|ET|:12|1@2", shown)


def test_what_could_be_a_password_is_refused_with_the_escapes_to_write():
    with pytest.raises(BadUrl, match=r"write %40 .* %2F"):
        Url.parse("redis://me:12/34@h/0")
    assert Url.parse("hdfs://nn:8020/a%40b?x=%40").path == "/a@b"
    assert Url.parse("objects+s3://bucket/a@b").path == Url.parse("file:///a@b").path == "/a@b"
    assert Url.parse("file:///a:b@c").path == "/a:b@c"


@pytest.mark.parametrize(
    "text", ["log://h/x%1B[31m", "log:///x?sync=%0A", "log:///x?%07=", "log:///\x1b#x", "log://h\x9b/x"]
)
def test_a_message_about_a_url_has_no_control_characters(text):
    for refused in (text, text + "?threads=0"):
        with pytest.raises(BadUrl) as caught:
            safekeeper.open(refused)
        assert str(caught.value).isprintable()


@dataclass(frozen=True)
class Options:
    sync: Literal["always", "none"] = "always"
    segment_size: Size = Size(1)
    threads: int = 1
    wait: float | None = None
    tls: bool = False
    name: str = "x"

    def __post_init__(self):
        if self.threads < 1:
            raise ValueError("threads is at least 1")


def test_options_become_fields_with_their_types():
    url = Url.parse("x:?sync=none&segment-size=64M&threads=4&wait=0.5&tls=yes&name=a%26b")
    assert url.options(Options) == Options("none", Size(64 << 20), 4, 0.5, True, "a&b")
    assert Url.parse("x:").options(Options) == Options()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("snyc=none", "did you mean 'sync'"),
        ("sync=never", "it takes always, none"),
        ("segment-size=1T", "such as 65536, 64K or 4M"),
        ("segment-size=M", "such as 65536, 64K or 4M"),
        ("threads=many", "it takes a number"),
        ("wait=soon", "it takes a number"),
        ("tls=maybe", "yes or no"),
        ("threads=0", "threads is at least 1"),
    ],
)
def test_a_bad_option_is_refused_with_what_it_takes(query, says):
    with pytest.raises(BadUrl, match=says):
        Url.parse(f"x:?{query}").options(Options)


def test_asserted_flags_are_declared_and_kept_apart(tmp_path):
    with safekeeper.open(f"file://{tmp_path}/x?assert=host,power") as store:
        assert Survives.HOST in store.survives
        assert store.asserted == Survives.HOST


@pytest.mark.parametrize(
    ("target", "says"),
    [("no_such_module:X", "does not load: No module named"), ("json:loads", "is no subclass of safekeeper.Backend")],
    ids=["does not load", "no backend"],
)
def test_an_entry_point_that_is_no_backend_is_one_line(target, says, tmp_path, monkeypatch):
    write_entry_points(tmp_path, {"theirs": target})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadUrl, match=f"the backend {target} for theirs: {says}") as caught:
        safekeeper.open("theirs:x")
    assert "\n" not in str(caught.value)
