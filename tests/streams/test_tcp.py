"""`tcp:` carries streams from process to process, without a broker."""

import base64
import secrets
import socket
import subprocess
import threading
import time
from contextlib import closing, suppress

import msgpack
import pytest
import xxhash

from safekeeper import BadUrl, Gone, QueueFull, TooLarge, Unavailable
from safekeeper.backend import MAX_VALUE_BYTES
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.streams.tcp.address import SECRET_VARIABLE, StreamAddress
from safekeeper.streams.tcp.protocol import (
    MARK,
    OpenStream,
    StreamKind,
    Welcome,
    decode_data,
    encode_data,
    handshake,
)
from safekeeper.testing import StreamContract
from safekeeper.testing.peer import PATIENCE
from safekeeper.testing.proxy import Proxy
from safekeeper.testing.sending import drain, numbered
from safekeeper.wire import ANSWER_BYTES, HELLO_BYTES, PROOF_BYTES, BadFrame, Body, u64

SECRET = "0123456789abcdef"


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


class TestContract(StreamContract):
    direct = True

    @pytest.fixture
    def url(self):
        return f"tcp://127.0.0.1:{free_port()}/words?secret={SECRET}"

    def another(self, url):
        return url.replace("/words", f"/words-{secrets.token_hex(6)}")


@pytest.fixture
def place():
    return f"127.0.0.1:{free_port()}"


def until(check):
    give_up = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < give_up
        time.sleep(0.005)


SAMPLES = {
    "open": "BAAAAAAAAAAAEAAAAAAAAAUAAAB3b3JkcwcAAABjb3VudGVy",
    "welcome": "AgAAAAAAAAADAAAAAAAAAAkAAAAAAAAA",
    "data": "BwAAAAAAAAAIAAAAAAAAAFNLUzFwipO3tCOxNZUHxAFrxAFixADEAQA=",
}


def test_the_bytes_of_frames_stay_what_they_are():
    opening, welcome = OpenStream("words", "counter", 3, 4096), Welcome(2, 3, 9)
    elements = [StreamElement(7, b"b", b"k"), StreamElement(8, b"\0")]
    bodies = {"open": opening.encode(), "welcome": welcome.encode(), "data": encode_data(elements)}
    assert {name: base64.b64encode(body).decode() for name, body in bodies.items()} == SAMPLES
    stored = {name: base64.b64decode(sample) for name, sample in SAMPLES.items()}
    assert OpenStream.decode(Body(stored["open"])) == opening
    assert Welcome.decode(Body(stored["welcome"])) == welcome
    assert decode_data(stored["data"]) == elements
    assert MARK == b"SKC1"
    assert [kind.value for kind in StreamKind] == [1, 2, 3, 4, 5, 65, 66, 67, 68, 127]


@pytest.mark.parametrize("change", (lambda b: b[:-1], lambda b: b[:20] + b"x" + b[21:], lambda b: b[:10]))
def test_damaged_elements_are_refused(change):
    with pytest.raises(BadFrame):
        decode_data(change(encode_data(numbered(1, b"a", b"b"))))


@pytest.mark.parametrize("content", [7, [1, b"", 7], [1, b"", "text"], [1], {}], ids=str)
def test_what_is_not_an_element_is_refused(content):
    body = msgpack.packb(content)
    last = len(content) // 2 if isinstance(content, list) else 1
    with pytest.raises(BadFrame):
        decode_data(u64(1) + u64(last) + b"SKS1" + xxhash.xxh3_64_digest(body) + body)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("tcp://127.0.0.1:7001", "names no stream"),
        ("tcp://127.0.0.1:7001/a/b", "names no stream"),
        ("tcp://127.0.0.1/words", "each address is host:port"),
        ("tcp:///words", "each address is host:port"),
        ("tcp://127.0.0.1:7001,127.0.0.1/words", "each address is host:port"),
        ("tcp://127.0.0.1:seven/words", "is no URL"),
        ("tcp://192.0.2.1:7001/words", "leaves this host: set SAFEKEEPER_STREAM_SECRET"),
        ("tcp://127.0.0.1:7001/words?secret=short", "a secret has at least 16 bytes"),
        ("tcp://127.0.0.1:7001/words?window=0", "take more than 0"),
        ("tcp://127.0.0.1:7001/words?when-full=never", "it takes stop, drop-reader"),
        ("tcp://127.0.0.1:7001/words?tls-key=x", "give both"),
    ],
)
def test_a_bad_url_is_refused_with_one_line(url, says, monkeypatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    for opener in (open_outlet, open_inlet):
        with pytest.raises(BadUrl, match=says) as caught:
            opener(url)
        assert "\n" not in str(caught.value)


def test_a_secret_is_not_shown(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    assert StreamAddress.parse("tcp://192.0.2.1:7001/words").secret == SECRET.encode()
    assert SECRET not in StreamAddress.parse(f"tcp://127.0.0.1:1,127.0.0.1:2/words?secret={SECRET}").shown


def test_several_streams_share_an_address(place):
    with (
        closing(open_outlet(f"tcp://{place}/a", readers=["r"])) as a,
        closing(open_outlet(f"tcp://{place}/b", readers=["r"])) as b,
        closing(open_inlet(f"tcp://{place}/a", reader="r")) as from_a,
        closing(open_inlet(f"tcp://{place}/b", reader="r")) as from_b,
    ):
        a.send(numbered(1, b"a"))
        b.send(numbered(1, b"b"))
        assert drain(from_a, 1) == numbered(1, b"a")
        assert drain(from_b, 1) == numbered(1, b"b")
        a.close()
        b.send(numbered(2, b"c"))
        assert drain(from_b, 1) == numbered(2, b"c")
        with pytest.raises(BadUrl, match="another secret"):
            open_outlet(f"tcp://{place}/c?secret={SECRET}")


def test_a_reader_with_another_secret_is_told_and_gets_nothing(place):
    with closing(open_outlet(f"tcp://{place}/words?secret={SECRET}", readers=["r"])) as words:
        words.send(numbered(1, b"a"))
        stranger = open_inlet(f"tcp://{place}/words?secret={SECRET[::-1]}", reader="r")
        with closing(stranger), pytest.raises(Unavailable, match="secret"):
            stranger.read(timeout=PATIENCE)
        with closing(open_inlet(f"tcp://{place}/words?secret={SECRET}", reader="r")) as reading:
            assert drain(reading, 1) == numbered(1, b"a")


def connected(place, secret=b""):
    """A connection whose handshake is done, and how to seal frames for it."""
    host, port = place.split(":")
    connection = socket.create_connection((host, int(port)))
    shake = handshake(secret)
    connection.sendall(shake.answer(connection.recv(HELLO_BYTES, socket.MSG_WAITALL)))
    shake.check_welcome(connection.recv(PROOF_BYTES, socket.MSG_WAITALL))
    return connection, shake.seal("reader")


ATTACKS = {
    "nothing": lambda c, s: None,
    "half a frame": lambda c, s: c.sendall(s.encode(StreamKind.OPEN, 0, OpenStream("words", "r", 0, 1).encode())[:-3]),
    "something else first": lambda c, s: c.sendall(s.encode(StreamKind.ACK, 0, bytes(8))),
    "an unknown kind": lambda c, s: c.sendall(
        s.encode(StreamKind.OPEN, 0, OpenStream("words", "r", 0, 1).encode()) + s.encode(42, 0)
    ),
    "a frame twice": lambda c, s: c.sendall(s.encode(StreamKind.OPEN, 0, OpenStream("words", "r", 0, 1).encode()) * 2),
    "a length without end": lambda c, s: c.sendall(b"\1\0\0\0\0\xff\xff\xff\xff"),
    "an acknowledgement of more than there is": lambda c, s: c.sendall(
        s.encode(StreamKind.OPEN, 0, OpenStream("words", "q", 0, 1).encode()) + s.encode(StreamKind.ACK, 0, b"\xff" * 8)
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_peer_that_breaks_off_or_talks_nonsense_harms_nobody_else(place, attack):
    with (
        closing(open_outlet(f"tcp://{place}/words", readers=["r", "q"])) as words,
        closing(open_inlet(f"tcp://{place}/words", reader="r")) as reading,
    ):
        words.send(numbered(1, b"a"))
        connection, seal = connected(place)
        with connection:
            attack(connection, seal)
        words.send(numbered(2, b"b"))
        assert drain(reading, 2) == numbered(1, b"a", b"b")


def test_bytes_that_are_no_handshake_are_hung_up_on(place):
    with closing(open_outlet(f"tcp://{place}/words", readers=["r"])):
        host, port = place.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(ANSWER_BYTES))
            connection.settimeout(PATIENCE)
            assert connection.recv(HELLO_BYTES, socket.MSG_WAITALL)[:4] == MARK
            assert connection.recv(1) == b""


def test_a_connection_that_breaks_in_the_middle_of_a_frame_loses_and_repeats_nothing(place):
    port = int(place.split(":")[1])
    sent = numbered(1, *(secrets.token_bytes(50_000) for _ in range(60)))
    with (
        closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words,
        closing(Proxy(port)) as proxy,
        closing(open_inlet(f"tcp://127.0.0.1:{proxy.port}/words?beat=0.1", reader="r")) as reading,
    ):
        found = []

        def all_found(timeout=0.1):
            with suppress(Unavailable):  # it was cut too often before it was known who is there
                found.extend(reading.read(timeout=timeout))
            return len(found) >= len(sent)

        for start in range(0, len(sent), 6):
            words.send(sent[start : start + 6])
            all_found(timeout=0.002)
            proxy.cut()
        until(all_found)
        assert found == sent


def test_a_way_that_is_cut_in_silence_is_noticed_and_gone_again(place):
    port = int(place.split(":")[1])
    with (
        closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words,
        closing(Proxy(port)) as proxy,
        closing(open_inlet(f"tcp://127.0.0.1:{proxy.port}/words?beat=0.05", reader="r")) as reading,
    ):
        words.send(numbered(1, b"a"))
        assert drain(reading, 1) == numbered(1, b"a")
        proxy.partition()
        words.send(numbered(2, b"b"))
        assert reading.read(timeout=0.3) == []
        proxy.heal()
        assert drain(reading, 1) == numbered(2, b"b")


def test_an_element_that_takes_longer_than_the_signs_of_life_arrives(place):
    sent = numbered(1, secrets.token_bytes(1 << 20))
    host, port = place.split(":")
    with (
        closing(socket.create_server((host, int(port)))) as listener,
        closing(open_inlet(f"tcp://{place}/words?beat=0.1", reader="r", after=0)) as reading,
    ):
        listener.settimeout(PATIENCE)
        for _ in range(5):  # it may be so slow that the reader takes it for gone, now and then
            with closing(listener.accept()[0]) as connection, suppress(OSError):
                send_slowly(connection, sent, pause=0.05)
                if found := reading.read(timeout=1):
                    assert found == sent
                    return
        pytest.fail("it never arrived")


def send_slowly(connection, elements, pause):
    """Be a producer with a bad line."""
    shake = handshake(b"")
    connection.sendall(shake.hello())
    connection.sendall(shake.welcome(connection.recv(ANSWER_BYTES, socket.MSG_WAITALL)))
    seal = shake.seal("producer")
    connection.sendall(seal.encode(StreamKind.WELCOME, 0, Welcome(0, 0, len(elements)).encode()))
    frame = seal.encode(StreamKind.DATA, 0, encode_data(elements))
    for begin in range(0, len(frame), 64 << 10):
        connection.sendall(frame[begin : begin + (64 << 10)])
        time.sleep(pause)


def test_a_slow_reader_gets_no_more_than_its_window_at_a_time(place):
    sent = numbered(1, *[b"x" * 1000] * 200)
    with (
        closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words,
        closing(open_inlet(f"tcp://{place}/words?window=10K", reader="r")) as reading,
    ):
        words.send(sent)
        until(lambda: sum(map(len, reading._buffer)) >= 10)
        time.sleep(0.1)
        assert sum(map(len, reading._buffer)) <= 11
        assert drain(reading, len(sent)) == sent


def test_acknowledgements_get_through_while_there_is_always_more_to_send(place, monkeypatch):
    looks, said = 0, threading.Event()
    with closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words:
        stream = words._stream
        look = stream.after

        def look_at_one_more(reader, number, most):
            nonlocal looks
            looks += said.is_set()
            if most and looks < 1000 and not words.acknowledged()["r"]:
                words.send(numbered(words.last + 1, b"a"))
            return look(reader, number, most)

        monkeypatch.setattr(stream, "after", look_at_one_more)
        connection, seal = connected(place)
        with connection:
            connection.sendall(seal.encode(StreamKind.OPEN, 0, OpenStream("words", "r", 0, 1 << 40).encode()))
            assert connection.recv(1)
            connection.sendall(seal.encode(StreamKind.ACK, 0, u64(1)))
            said.set()
            until(lambda: words.acknowledged()["r"])
            assert looks < 1000


def test_a_reader_gets_on_when_its_window_is_full_of_what_it_has(place):
    """Its producer was restarted and sends again more than the window from before the reader's position."""
    sent = numbered(1, *[b"x" * 1000] * 100)
    with closing(open_inlet(f"tcp://{place}/words?window=5K", reader="r", after=0)) as reading:
        with closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words:
            words.send(sent[:90])
            assert drain(reading, 90) == sent[:90]
        with closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words:
            for start in range(0, 100, 10):
                words.send(sent[start : start + 10])
            assert drain(reading, 10) == sent[90:]


def test_what_a_reader_has_acknowledged_before_counts_when_it_was_sent_again(place):
    with closing(open_inlet(f"tcp://{place}/words", reader="r")) as reading:
        with closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words:
            words.send(numbered(1, b"a", b"b", b"c"))
            drain(reading, 3)
            reading.acknowledge(3)
        with closing(open_outlet(f"tcp://{place}/words", readers=["r"], floor=1)) as words:
            told = threading.Event()
            words.on_acknowledged(told.set)
            words.send(numbered(2, b"b"))
            until(lambda: words.acknowledged() == {"r": 2})
            assert told.wait(PATIENCE)
            words.send(numbered(3, b"c", b"d"))
            until(lambda: words.acknowledged() == {"r": 3})
            assert drain(reading, 1) == numbered(4, b"d")


def test_a_reader_that_was_dropped_is_told_when_it_comes_back(place):
    url = f"tcp://{place}/words?max-elements=2"
    with closing(open_outlet(f"{url}&when-full=drop-reader", readers=["r", "q"])) as words:
        with closing(open_inlet(url, reader="q")) as quick:
            words.send(numbered(1, b"a", b"b"))
            drain(quick, 2)
            quick.acknowledge(2)
            until(lambda: words.acknowledged()["q"] == 2)
            words.send(numbered(3, b"c"))
            assert words.acknowledged() == {"q": 2}
        with closing(open_inlet(url, reader="r")) as old, pytest.raises(Gone, match="dropped for being too far behind"):
            old.read(timeout=PATIENCE)


def test_a_reader_that_was_told_gets_on_when_it_is_declared(place):
    url = f"tcp://{place}/words"
    with closing(open_outlet(url, readers=["q"])) as words:
        words.send(numbered(1, b"a"))
        with closing(open_inlet(url, reader="r", after=0)) as reading:
            with pytest.raises(Gone, match="for the reader r"):
                reading.read(timeout=PATIENCE)
            found = []

            def reads():
                with suppress(Gone):  # it may have asked once more before
                    found.extend(reading.read(timeout=0.5))
                return found

            with closing(open_outlet(url, readers=["q", "r"])):
                until(reads)
            assert found == numbered(1, b"a")


def test_a_reader_that_is_dropped_while_it_is_connected_is_told(place):
    with (
        closing(open_outlet(f"tcp://{place}/w?max-elements=2&when-full=drop-reader", readers=["r"])) as words,
        closing(open_inlet(f"tcp://{place}/w", reader="r")) as reading,
    ):
        words.send(numbered(1, b"a", b"b"))
        drain(reading, 2)
        words.send(numbered(3, b"c"))
        with pytest.raises(Gone):
            reading.read(timeout=PATIENCE)


def test_a_full_stream_takes_elements_when_its_reader_gets_on(place):
    url = f"tcp://{place}/words?max-elements=2"
    with closing(open_outlet(url, readers=["r"])) as words, closing(open_inlet(url, reader="r")) as reading:
        words.send(numbered(1, b"a", b"b"))
        with pytest.raises(QueueFull):
            words.send(numbered(3, b"c"))
        drain(reading, 2)
        reading.acknowledge(2)
        until(lambda: words.acknowledged() == {"r": 2})
        words.send(numbered(3, b"c"))


def test_an_element_over_the_limit_is_refused(place):
    with closing(open_outlet(f"tcp://{place}/words", readers=["r"])) as words:
        with pytest.raises(TooLarge, match="the element 1 of words"):
            words.send(numbered(1, bytes(MAX_VALUE_BYTES + 1)))
        assert words.last == 0


def test_a_producer_listens_at_the_first_address_that_is_free():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        used, free = f"127.0.0.1:{taken.getsockname()[1]}", f"127.0.0.1:{free_port()}"
        with pytest.raises(Unavailable, match="give several addresses"):
            open_outlet(f"tcp://{used}/words")
        url = f"tcp://{used},{free}/words?beat=0.1"  # who listens at the first one never says a word
        with closing(open_outlet(url, readers=["r"])) as words, closing(open_inlet(url, reader="r")) as reading:
            words.send(numbered(1, b"a"))
            assert drain(reading, 1) == numbered(1, b"a")


def test_a_producer_with_a_lower_claim_than_was_seen_is_left_alone():
    old, new = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with (
        closing(open_outlet(f"tcp://{old}/words", readers=["r"])) as stopped,
        closing(open_outlet(f"tcp://{new}/words", readers=["r"])) as owner,
    ):
        stopped.begin_epoch(1)
        owner.begin_epoch(2)
        owner.send(numbered(1, b"a"))
        with closing(open_inlet(f"tcp://{old},{new}/words", reader="r")) as reading:
            assert drain(reading, 1) == numbered(1, b"a")
            owner.close()
            stopped.send(numbered(1, b"a", b"of a fenced producer"))
            assert reading.read(timeout=0.2) == []
            stopped.begin_epoch(3)
            assert drain(reading, 1) == numbered(2, b"of a fenced producer")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
        f" -keyout {folder}/key.pem -out {folder}/cert.pem".split(),
        check=True,
        capture_output=True,
    )
    return f"tls-cert={folder}/cert.pem&tls-key={folder}/key.pem", f"tls-ca={folder}/cert.pem"


@pytest.mark.parametrize("both", (False, True), ids=("the producer shows its certificate", "both do"))
def test_streams_are_encrypted(place, certificate, both):
    own, others = certificate
    producing, reading_by = (f"{own}&{others}",) * 2 if both else (own, others)
    sent = numbered(1, *(secrets.token_bytes(100_000) for _ in range(20)))
    with (
        closing(open_outlet(f"tcp://{place}/words?{producing}", readers=["r"])) as words,
        closing(open_inlet(f"tcp://{place}/words?{reading_by}", reader="r")) as reading,
        closing(open_inlet(f"tcp://{place}/words?beat=0.1", reader="r")) as plain,
    ):
        words.send(sent)
        assert drain(reading, 20) == sent
        reading.acknowledge(20)
        until(lambda: words.acknowledged() == {"r": 20})
        assert plain.read(timeout=0.5) == []


def test_a_side_without_its_certificate_is_told(certificate, place):
    own, others = certificate
    with pytest.raises(BadUrl, match="a producer shows a certificate"):
        open_outlet(f"tcp://{place}/words?{others}")
    with pytest.raises(BadUrl, match="a reader checks"):
        open_inlet(f"tcp://{place}/words?{own}")
    with pytest.raises(BadUrl, match="cannot be used"):
        open_inlet(f"tcp://{place}/words?tls-ca=/nowhere")
