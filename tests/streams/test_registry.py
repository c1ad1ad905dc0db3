"""Which carrier serves the URL of a stream."""

import pytest

from safekeeper import BadUrl
from safekeeper.streams import open_inlet, open_outlet
from safekeeper.streams.registry import STREAMS_GROUP
from safekeeper.testing.entry_point import write_entry_points


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is not the URL of a stream"),
        ("words", "is not the URL of a stream"),
        ("log:///x?stream=words", r"no carrier for log:.*store:log:\.\.\.\?stream=NAME"),
    ],
)
def test_a_bad_url_is_refused_with_one_line_that_says_what_to_do(url, says):
    for opener in (open_outlet, open_inlet):
        with pytest.raises(BadUrl, match=says) as caught:
            opener(url)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ("", "a\nb", "x" * 201))
def test_a_reader_has_a_name_that_can_be_shown(name):
    with pytest.raises(ValueError, match="a reader's name"):
        open_outlet("log:x", readers=[name])


def test_readers_are_a_list_of_names():
    with pytest.raises(TypeError, match="a list of names"):
        open_outlet("log:x", readers="counter")


def test_an_installed_package_brings_a_carrier(tmp_path, monkeypatch):
    (tmp_path / "their_carrier.py").write_text("def open_outlet(url, readers, floor):\n    return url, readers\n")
    write_entry_points(tmp_path, {"theirs": "their_carrier", "broken": "no_such_module"}, STREAMS_GROUP)
    monkeypatch.syspath_prepend(tmp_path)
    assert open_outlet("theirs:x", readers=["a", "b", "a"]) == ("theirs:x", ["a", "b"])
    with pytest.raises(BadUrl, match="the carrier no_such_module for broken: does not load"):
        open_outlet("broken:x")
