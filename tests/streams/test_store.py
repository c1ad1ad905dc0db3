"""`store:` carries streams in any backend."""

import base64
from contextlib import closing

import pytest

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Corruption, Gone, TooLarge, Unavailable
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.streams.frames import Frame, decode, encode, split
from safekeeper.streams.retained import Retention
from safekeeper.streams.store import StoredStream, StoreInlet, StoreOutlet, covering, oldest_run
from safekeeper.testing import Faulty, StreamContract
from safekeeper.testing.sending import drain, numbered


class TestOnLog(StreamContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"store:log://{tmp_path}/store?stream=words"


class TestOnLmdb(StreamContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"store:lmdb://{tmp_path}/store?stream=words"


class TestOnObjects(StreamContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"store:objects+file://{tmp_path}/store?assert=process&stream=words"


SAMPLE = "U0tTMXCKk7e0I7E1lQfEAWvEAWLEAMQBAA=="


def test_the_bytes_of_a_frame_stay_what_they_are():
    elements = [StreamElement(7, b"b", b"k"), StreamElement(8, b"\0")]
    frame, value = encode(elements)
    assert frame.key == b"frame_0000000000000000007_0000000000000000008"
    assert base64.b64encode(value).decode() == SAMPLE
    assert decode("here", frame, base64.b64decode(SAMPLE)) == elements


@pytest.mark.parametrize("change", (lambda v: v[:-1], lambda v: b"X" + v[1:], lambda v: v[:-1] + b"\1", lambda v: b""))
def test_a_damaged_frame_is_named(change):
    frame, value = encode(numbered(1, b"a", b"b"))
    with pytest.raises(Corruption, match=r"words\.stream/frame_0000000000000000001_"):
        decode("words.stream", frame, change(value))


def test_a_frame_under_the_name_of_another_is_damage():
    _, value = encode(numbered(1, b"a", b"b"))
    for other in (Frame(2, 3), Frame(1, 3)):
        with pytest.raises(Corruption, match="of another frame"):
            decode("words.stream", other, value)


def test_frames_are_closed_at_a_size():
    sizes = [len(some) for some in split(numbered(1, *[b"x" * 400_000] * 5, b"y" * 3_000_000, b"z"))]
    assert sizes == [2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("frames", "run"),
    [
        ([], None),
        ([(1, 3)], (1, 3)),
        ([(1, 3), (4, 4)], (1, 4)),
        ([(1, 3), (5, 6)], (5, 6)),
        ([(1, 3), (2, 9), (4, 5)], (1, 9)),
        ([(1, 3), (7, 8), (7, 9), (9, 12)], (7, 12)),
    ],
)
def test_the_oldest_run_is_what_comes_without_a_gap_before_the_end(frames, run):
    assert oldest_run([Frame(*frame) for frame in frames]) == run


def test_of_frames_that_overlap_the_one_that_leads_furthest_is_taken():
    frames = [Frame(1, 3), Frame(2, 9), Frame(3, 5)]
    assert covering(frames, 3) == (2, 9)
    assert covering(frames, 1) == (1, 3)
    assert covering(frames, 10) is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("store:log:///x", "names no stream: add stream=NAME"),
        ("store:log:///x?stream=", "names no stream"),
        ("store:?stream=a", "is no URL|write a scheme"),
        ("store:nosuch:///x?stream=a", "no backend for nosuch"),
        ("store:log:///x?stream=a&poll=0", "poll= takes more than 0 seconds"),
        ("store:log:///x?stream=a&max-elements=0", "max-elements= takes a number over 0"),
        ("store:log:///x?stream=a&when-full=never", "it takes stop, drop-reader"),
        ("store:log:///x?stream=%07", "no control characters"),
        (f"store:log:///x?stream={'x' * 250}", "1 to 255 bytes"),
    ],
)
def test_a_bad_url_is_refused_with_one_line(url, says):
    for opener in (open_outlet, open_inlet):
        with pytest.raises(BadUrl, match=says) as caught:
            opener(url)
        assert "\n" not in str(caught.value)


def test_the_stores_own_options_reach_the_store(tmp_path):
    url = f"store:log://{tmp_path}/x?sync=none&stream=a%26b&assert=host"
    with closing(open_outlet(url)) as outlet:
        assert outlet._stream.name == "a&b"
        assert safekeeper.Survives.HOST in outlet._stream.store.survives
        assert not outlet.retains
    with closing(open_outlet(f"store:log://{tmp_path}/x?stream=a")) as outlet:
        assert outlet.retains


@pytest.fixture
def store(tmp_path):
    with safekeeper.open(f"log://{tmp_path}/store") as inner, Faulty(inner) as faulty:
        yield faulty


@pytest.fixture
def outlet(store):
    return StoreOutlet(StoredStream(store, "words"), ["r"], 0, Retention())


@pytest.fixture
def inlet(store):
    return StoreInlet(StoredStream(store, "words"), "r", None, 0.01)


@pytest.mark.parametrize("when", ("before", "after"))
def test_a_send_that_failed_is_sent_again(store, outlet, inlet, when):
    outlet.send(numbered(1, b"a"))
    store.fail("write", when=when)
    with pytest.raises(Unavailable):
        outlet.send(numbered(2, b"b", b"c"))
    outlet.send(numbered(2, b"b", b"c", b"d"))
    assert drain(inlet, 4) == numbered(1, b"a", b"b", b"c", b"d")


def test_half_of_a_large_send_that_failed_is_sent_again(store, outlet, inlet):
    sent = numbered(1, *[b"x" * 700_000] * 4)
    store.fail("write", skip=2)
    with pytest.raises(Unavailable):
        outlet.send(sent)
    assert outlet.last == 2
    outlet.send(sent)
    assert drain(inlet, 4) == sent


def test_a_frame_that_comes_late_does_no_harm(store, outlet, inlet):
    """It was on its way when its producer was killed; the successor has sent its elements in other frames since."""
    outlet.send(numbered(1, b"a", b"b", b"c", b"d"))
    frame, value = encode(numbered(2, b"b", b"c"))
    outlet._stream.write(frame, value)
    assert drain(inlet, 4) == numbered(1, b"a", b"b", b"c", b"d")
    inlet.acknowledge(4)
    outlet.send(numbered(5, b"e"))
    outlet.acknowledged()
    outlet._stream.write(frame, value)  # also after its place was trimmed
    looking = StoreInlet(StoredStream(store, "words"), None, None, 0.01)
    assert drain(looking, 1) == numbered(5, b"e")
    with pytest.raises(Gone, match="begin after 4"):
        StoreInlet(StoredStream(store, "words"), "r", 3, 0.01).read(timeout=0)


def test_a_listing_that_misses_what_came_meanwhile_is_made_again(store, outlet, inlet, monkeypatch):
    """It shows the third frame and not the second: both came while it was made."""
    for number in (1, 2, 3):
        outlet.send(numbered(number, b"%d" % number))
    whole, listings = store.keys, []

    def keys(group):
        listings.append(sorted(whole(group)))
        return iter(listings[-1][::2] if len(listings) == 1 else listings[-1])

    monkeypatch.setattr(store, "keys", keys)
    assert drain(inlet, 3) == numbered(1, b"1", b"2", b"3")
    assert len(listings) == 2


def test_an_element_over_the_limit_is_refused_and_the_others_go_on(outlet, inlet):
    outlet.send(numbered(1, b"a"))
    with pytest.raises(TooLarge, match="the element 2 of words"):
        outlet.send(numbered(2, bytes(safekeeper.MAX_VALUE_BYTES)))
    outlet.send(numbered(2, b"b"))
    assert drain(inlet, 2) == numbered(1, b"a", b"b")


def test_what_was_trimmed_takes_no_space(store, outlet, inlet):
    for number in range(1, 21):
        outlet.send(numbered(number, b"x"))
    drain(inlet, 20)
    inlet.acknowledge(20)
    outlet.acknowledged()
    assert len(list(store.keys("words.stream"))) == 1


def test_what_is_not_a_frame_is_left_alone(store, outlet, inlet):
    store.write(Batch({CheckpointId("words.stream", b"batch_1"): b"of another version"}))
    outlet.send(numbered(1, b"a"))
    assert drain(inlet, 1) == numbered(1, b"a")
