"""What is sent and what comes back; the layout of the bytes is spelled out here a second time on purpose."""

from __future__ import annotations

import struct

import pytest

PUT, DELETE, KEYS, READ, DONE, ERROR = 1, 2, 3, 4, 65, 127
TOO_LARGE, BAD_ID, BAD_FRAME = 5, 6, 7


def field(data):
    return struct.pack("<I", len(data)) + data


def head(mark=b"SKA3", kind=PUT, request=7, length=0, checksum=0):
    return mark + struct.pack("<BIIQ", kind, request, length, checksum)


@pytest.fixture
def agent(shared):
    """The same one for all these tests: whatever is sent to it, it goes on."""
    return shared


def test_what_was_put_is_read_back_in_the_order_asked_for(peer):
    for key, value in ((b"a", b"1"), (b"b", b""), (b"", bytes(range(256)))):
        assert peer.put(key, value).kind == DONE
    assert peer.read([b"b", b"nobody", b"", b"a", b"a"]) == [b"", None, bytes(range(256)), b"1", b"1"]
    assert sorted(peer.keys()) == [b"", b"a", b"b"]


def test_a_deleted_key_is_gone_and_deleting_it_again_is_not_an_error(peer):
    peer.put(b"a", b"1")
    assert peer.delete([b"a", b"nobody"]).kind == DONE
    assert peer.delete([b"a"]).kind == DONE
    assert peer.read([b"a"]) == [None]
    assert peer.keys() == []


def test_done_says_how_long_storing_and_syncing_took(peer):
    store, sync, planned, hits = struct.unpack("<QQII", peer.put(b"a", b"1").body)
    assert 0 < sync <= store
    assert planned == hits == 0  # a backend that does not plan where its files go


def test_the_largest_value_of_the_contract_goes_through(peer):
    value = bytes(64 * 1024 * 1024)
    assert peer.put(b"a", value).kind == DONE
    assert peer.read([b"a"]) == [value]


def test_a_long_list_of_keys_comes_in_several_frames(peer):
    keys = [b"%04d" % i + bytes(8000) for i in range(100)]
    for key in keys:
        peer.put(key, b"")
    *lists, done = peer.ask(KEYS, field(b"g"))
    assert len(lists) > 1
    assert done.kind == DONE
    assert sorted(peer.keys()) == keys


def test_a_group_without_keys_gives_an_empty_list(peer):
    assert peer.keys() == []
    assert peer.read([]) == []


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    (
        pytest.param(PUT, field(b"") + field(b"k") + field(b"v"), BAD_ID, id="empty group"),
        pytest.param(PUT, field(b"a\nb") + field(b"k") + field(b"v"), BAD_ID, id="control character"),
        pytest.param(KEYS, field(b"g" * 256), BAD_ID, id="long group"),
        pytest.param(PUT, field(b"g") + field(bytes(32769)) + field(b"v"), TOO_LARGE, id="long key"),
        pytest.param(PUT, field(b"g") + field(b"k") + field(bytes((64 << 20) + 1)), TOO_LARGE, id="long value"),
        pytest.param(READ, field(b"g") + struct.pack("<I", 1) + field(bytes(32769)), TOO_LARGE, id="read long key"),
    ),
)
def test_a_request_that_cannot_be_is_refused_and_the_connection_goes_on(peer, kind, body, code):
    (reply,) = peer.ask(kind, body)
    assert reply.code == code
    assert "\n" not in reply.message
    assert peer.put(b"a", b"1").kind == DONE


@pytest.mark.parametrize(
    ("data", "says"),
    (
        pytest.param(head(mark=b"HTTP"), "SKA3", id="wrong mark"),
        pytest.param(head(mark=b"SKA1"), "same safekeeper on both sides", id="another version"),
        pytest.param(head(kind=99), "kind 99", id="unknown kind"),
        pytest.param(head(length=65 * 1024 * 1024 + 1), "at most", id="too long"),
        pytest.param(head(length=2**32 - 1), "at most", id="far too long"),
        pytest.param(head(length=3) + b"abc", "checksum", id="wrong checksum"),
    ),
)
def test_bytes_that_are_no_frame_are_answered_and_the_connection_is_closed(agent, peer, data, says):
    with agent.peer() as other:
        peer.send(data)
        reply = peer.reply()
        assert (reply.code, reply.request) == (BAD_FRAME, 0)
        assert says in reply.message
        assert peer.is_hung_up_on()
        assert other.put(b"a", b"1").kind == DONE


@pytest.mark.parametrize(
    ("kind", "body"),
    (
        pytest.param(PUT, b"", id="no fields"),
        pytest.param(PUT, field(b"g") + field(b"k"), id="no value"),
        pytest.param(PUT, field(b"g") + field(b"k") + struct.pack("<I", 9) + b"short", id="short value"),
        pytest.param(PUT, field(b"g") + field(b"k") + field(b"v") + b"!", id="too many bytes"),
        pytest.param(PUT, field(b"\xff") + field(b"k") + field(b"v"), id="group not UTF-8"),
        pytest.param(READ, field(b"g") + struct.pack("<I", 2**32 - 1), id="count without keys"),
        pytest.param(DELETE, field(b"g") + struct.pack("<I", 2) + field(b"k"), id="fewer keys than said"),
        pytest.param(KEYS, field(b"g") + b"?", id="keys with more"),
        pytest.param(DONE, b"", id="a reply"),
    ),
)
def test_a_frame_whose_body_is_not_what_its_kind_says_closes_the_connection(agent, peer, kind, body):
    with agent.peer() as other:
        peer.send(other.frame(kind, 7, body))
        reply = peer.reply()
        assert (reply.code, reply.request) == (BAD_FRAME, 0)
        assert peer.is_hung_up_on()
        assert other.keys() == []


def test_the_message_reaches_a_peer_that_is_still_sending(peer):
    peer.send(head(mark=b"oops") + bytes(8 << 20))
    assert peer.reply().code == BAD_FRAME


def test_a_peer_that_vanishes_in_the_middle_of_a_frame_leaves_nothing_behind(agent, peer):
    whole = peer.frame(PUT, 7, field(b"g") + field(b"k") + field(bytes(1000)))
    for cut in (1, 20, 21, 22, len(whole) - 1):
        with agent.peer() as other:
            other.send(whole[:cut])
    assert peer.keys() == []
