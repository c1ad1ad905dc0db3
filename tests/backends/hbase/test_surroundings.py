"""Wrong ports, wrong servers, missing tables: one clear line each."""

import socket
import threading
from contextlib import closing, suppress

import pytest

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Unavailable
from safekeeper.backend import MAX_KEY_BYTES, MAX_VALUE_BYTES
from safekeeper.dev.hbase import HBaseServer, ThriftServer

A = CheckpointId("g", b"a")


def write(url):
    with safekeeper.open(url) as store:
        store.write(Batch({A: b"value"}))


@pytest.fixture
def name(hbase_url):
    """The name of a table that does not exist yet."""
    return hbase_url.rpartition("/")[2]


@pytest.fixture
def admin(hbase):
    with closing(hbase.client()) as client:
        yield client


@pytest.fixture(scope="module")
def framed(hbase, servers):
    """Another Thrift server of the same HBase, with another transport."""
    with ThriftServer(servers / "framed", hbase.conf, "-f") as server:
        yield server


@pytest.fixture
def listener():
    """Starts something that listens and gives one answer, whatever it is told, or none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def start(answer):
            def answer_all():
                with suppress(OSError):
                    while True:
                        client, _ = listening.accept()
                        kept.append(client)
                        if answer:
                            client.recv(1000)
                            client.sendall(answer)
                            client.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=answer_all, daemon=True).start()
            return listening.getsockname()[1]

        yield start
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        for client in kept:
            client.close()


@pytest.mark.parametrize(
    ("url", "error", "line"),
    (
        ("hbase://127.0.0.1:1", Unavailable, "127.0.0.1:1: nothing listens there: start the Thrift server, or correct"),
        ("hbase://no-such-host.invalid", Unavailable, "no-such-host.invalid:9090: the host is not known: correct it"),
        ("hbase:", BadUrl, "names no host: write hbase://127.0.0.1:9090/safekeeper"),
        ("hbase://user:secret@127.0.0.1", BadUrl, "has a login: HBase's Thrift 1 server knows none"),
        ("hbase://127.0.0.1/a/b", BadUrl, "the path is the name of a table, such as /safekeeper"),
        ("hbase://127.0.0.1/-a", BadUrl, "the path is the name of a table"),
        ("hbase://127.0.0.1?timeout=0", BadUrl, "timeout= and orphans-after= take more than 0 seconds"),
        ("hbase://127.0.0.1?connections=0", BadUrl, "connections= takes 1 or more"),
        ("hbase://127.0.0.1?transport=http", BadUrl, "it takes buffered, framed"),
    ),
)
def test_a_url_that_leads_nowhere_is_one_clear_line(url, error, line):
    with pytest.raises(error) as raised:
        write(url)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("options", ("", "&transport=framed", "&protocol=compact"), ids=("plain", "framed", "compact"))
@pytest.mark.parametrize(
    ("answer", "line"),
    (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20, "answers, but not as a Thrift server of HBase does|hung up at once"),
        (b"", "did not answer in time: look at the server and its workers"),
    ),
    ids=("http", "silence"),
)
def test_a_server_that_is_not_thrift_is_one_clear_line(listener, options, answer, line):
    with pytest.raises((BadUrl, Unavailable), match=line):
        write(f"hbase://127.0.0.1:{listener(answer)}?timeout=1{options}")


def test_the_wrong_transport_is_one_clear_line(hbase, framed):
    with pytest.raises(Unavailable, match="hung up at once: if the Thrift server runs with -f"):
        write(f"hbase://127.0.0.1:{framed.port}?timeout=3")
    with pytest.raises(Unavailable, match=r"leave transport=framed and protocol=compact away|hung up at once"):
        write(f"hbase://127.0.0.1:{hbase.port}?timeout=3&transport=framed")


def test_the_framed_transport_takes_everything_too(framed, name):
    largest, longest = bytes(5_000_000), CheckpointId("g" * 255, b"k" * MAX_KEY_BYTES)
    with safekeeper.open(f"hbase://127.0.0.1:{framed.port}/{name}?transport=framed") as store:
        ids = {CheckpointId("g", b"%d" % n * 30_000): bytes(1_048_576 - n % 2) for n in range(4)}
        store.write(Batch({A: largest, longest: b"long", **ids}))
        assert store.read([A, longest, *ids]) == [largest, b"long", *ids.values()]


def test_a_table_of_somebody_else_is_one_clear_line(admin, hbase_url, name):
    admin.create_table(name, {"other": {}})
    with pytest.raises(BadUrl, match=f"the table {name} has no family 'data'"):
        write(hbase_url)
    assert list(admin.table(name).scan()) == []


def test_a_missing_table_is_empty_until_it_is_to_be_written(hbase_url, name):
    with safekeeper.open(f"{hbase_url}?create=no") as store:
        assert store.read([A, A]) == [None, None]
        assert list(store.groups()) == list(store.keys("g")) == []
        with pytest.raises(Unavailable, match=f"there is no table {name} and create=no"):
            store.write(Batch({A: b""}))


def test_a_missing_namespace_is_one_clear_line(hbase_url):
    with pytest.raises(Unavailable, match="there is no namespace for the table nowhere:t"):
        write(f"{hbase_url.rpartition('/')[0]}/nowhere:t")


def test_a_disabled_table_is_one_clear_line_and_nothing_is_lost(admin, hbase_url, name):
    write(hbase_url)
    with safekeeper.open(hbase_url) as store:
        admin.disable_table(name)
        with pytest.raises(Unavailable, match=f"the table {name} is disabled") as raised:
            store.read([A])
        assert "\n" not in str(raised.value)
        with pytest.raises(Unavailable):
            store.write(Batch({A: b"newer"}))
        admin.enable_table(name)
        assert store.read([A]) == [b"value"]
        store.write(Batch({A: b"newer"}))
        assert store.read([A]) == [b"newer"]


@pytest.fixture(scope="module")
def guest(servers):
    """A Thrift server whose user an HBase of its own lets do nothing."""
    guard = "org.apache.hadoop.hbase.security.access.AccessController"
    settings = {f"hbase_coprocessor_{kind}_classes": guard for kind in ("master", "region", "regionserver")}
    with (
        HBaseServer(servers / "guarded", hbase_security_authorization="true", **settings) as server,
        ThriftServer(servers / "guest", server.conf, user="guest") as guest,
    ):
        write(server.url)  # whoever runs it may do everything
        yield guest


@pytest.mark.parametrize("table", ("mine", "safekeeper"), ids=("to create", "to write"))
def test_no_permission_is_one_clear_line(guest, table):
    with pytest.raises((BadUrl, Unavailable)) as raised:
        write(f"hbase://127.0.0.1:{guest.port}/{table}")
    assert str(raised.value) == (
        f"127.0.0.1:{guest.port}: the Thrift server's user may not do this with the table {table}: grant it RWC"
    )


def test_the_largest_key_and_value_fit(hbase_url):
    id, value = CheckpointId("€" * 85, b"\xff" * MAX_KEY_BYTES), bytes(MAX_VALUE_BYTES)
    with safekeeper.open(hbase_url) as store:
        store.write(Batch({id: value}))
        assert store.read([id]) == [value]
        assert list(store.keys(id.group)) == [id.key]
