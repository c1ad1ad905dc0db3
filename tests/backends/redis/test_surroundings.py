"""Wrong ports, wrong passwords, full memory: one clear line each, and what was there stays there."""

import json
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack, suppress

import pytest

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Survives, Unavailable
from safekeeper.dev.binaries import find_server
from safekeeper.dev.redis import RedisServer

A, B = CheckpointId("g", b"a"), CheckpointId("g", b"b")


def write(url):
    with safekeeper.open(url) as store:
        store.write(Batch({A: b"value"}))


@pytest.fixture(scope="module")
def guarded(servers):
    """A server with a password."""
    with RedisServer(servers / "guarded", password="right", appendonly="no", maxclients="100") as server:
        yield server


@pytest.fixture
def admin(guarded):
    """The guarded server, with the settings that it has now restored afterwards."""
    with guarded.client() as client:
        changed = ("maxmemory", "maxmemory-policy", "min-replicas-to-write", "maxclients")
        before = {name: client.config_get(name)[name] for name in changed}
        yield client
        client.replicaof("NO", "ONE")
        for name, value in before.items():
            client.config_set(name, value)


@pytest.fixture(scope="module")
def says():
    """Starts something that listens and gives one answer, whatever it is told, or none."""
    listeners = []

    def start(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=_answer_all, args=(listener, answer), daemon=True).start()
        return listener.getsockname()[1]

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _answer_all(listener, answer):
    with ExitStack() as kept, suppress(OSError):
        while True:
            client, _ = listener.accept()
            kept.enter_context(client)
            if answer:
                with client:
                    client.recv(1000)
                    client.sendall(answer)


@pytest.mark.parametrize(
    ("url", "error", "says"),
    (
        ("redis://127.0.0.1:1", Unavailable, "127.0.0.1:1: nothing listens there: start the server, or correct"),
        ("redis://no-such-host.invalid", Unavailable, "cannot be reached"),
        ("redis+unix:///no/such/socket", Unavailable, "/no/such/socket: nothing listens there"),
        ("redis:", BadUrl, "names no host: write redis://127.0.0.1:6379/0"),
        ("redis://127.0.0.1/x", BadUrl, "the path is the number of the database"),
        ("redis://127.0.0.1/1?db=2", BadUrl, "the path is the number of the database"),
        ("redis://127.0.0.1?timeout=0", BadUrl, "timeout= takes more than 0 seconds"),
        ("redis://127.0.0.1?replicas=-1", BadUrl, "take no negative numbers"),
        ("redis://127.0.0.1?prefix={a}", BadUrl, "prefix= takes a name without braces"),
        ("redis://127.0.0.1?verify=no", BadUrl, "has options for TLS: write rediss://"),
        ("rediss://127.0.0.1?ca-file=/no/such/file", BadUrl, "ca-file=/no/such/file: there is no such file"),
    ),
)
def test_a_url_that_leads_nowhere_is_one_clear_line(url, error, says):
    with pytest.raises(error) as raised:
        write(url)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("scheme", "answer", "error", "line"),
    (
        ("redis", b"HTTP/1.1 400 Bad Request\r\n\r\n", BadUrl, "answers, but not as Redis does: correct the host"),
        ("rediss", b"HTTP/1.1 400 Bad Request\r\n\r\n", BadUrl, "does not speak TLS: write redis:// instead"),
        ("redis", b"", Unavailable, "did not answer in time: look at the server and the network"),
        ("rediss", b"", Unavailable, "did not answer in time: if it does not speak TLS, write redis://"),
    ),
    ids=("http", "http for tls", "silence", "silence for tls"),
)
def test_a_server_that_is_not_redis_is_one_clear_line(says, scheme, answer, error, line):
    with pytest.raises(error, match=line):
        write(f"{scheme}://127.0.0.1:{says(answer)}?timeout=1")


@pytest.mark.parametrize(
    ("login", "line"),
    (
        ("", "wants a password: write redis://:PASSWORD@host"),
        (":wrong@", "does not accept the password"),
        ("nobody:right@", "does not accept the password"),
    ),
    ids=("none", "wrong", "wrong user"),
)
def test_a_wrong_password_is_one_clear_line(guarded, login, line):
    with pytest.raises(BadUrl, match=line) as raised:
        write(f"redis://{login}127.0.0.1:{guarded.port}")
    assert "wrong@" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "error", "line"),
    (
        (
            "redis://:a%20pass%2Fword@127.0.0.1:{port}",
            Unavailable,
            "hung up at once: if it speaks TLS, write rediss://",
        ),
        (
            "rediss://:a%20pass%2Fword@127.0.0.1:{port}",
            BadUrl,
            r"certificate is not trusted \(self-signed certificate\)",
        ),
    ),
    ids=("without", "untrusted"),
)
def test_wrong_tls_is_one_clear_line(redis_tls, url, error, line):
    with pytest.raises(error, match=line):
        write(url.format(port=redis_tls.port))


def test_a_database_that_is_not_there_is_one_clear_line(guarded, redis_cluster):
    with pytest.raises(BadUrl, match="DB index is out of range"):
        write(f"redis://:right@127.0.0.1:{guarded.port}/99")
    with pytest.raises(BadUrl, match="not allowed in cluster mode"):
        write(redis_cluster.url.removesuffix("0") + "1")


def test_a_server_that_may_throw_data_away_is_refused(admin, guarded, fresh):
    admin.config_set("maxmemory-policy", "volatile-lru")
    write(fresh(guarded))  # it never will: its memory has no limit
    admin.config_set("maxmemory", "1gb")
    with pytest.raises(BadUrl, match=r"throws data away .*\(maxmemory-policy volatile-lru\): set it to noeviction"):
        write(fresh(guarded))
    admin.config_set("maxmemory-policy", "noeviction")
    write(fresh(guarded))


def test_full_memory_is_one_clear_line_and_what_was_there_can_be_read_and_deleted(admin, guarded, fresh):
    with safekeeper.open(fresh(guarded)) as store:
        store.write(Batch({A: b"kept", CheckpointId("h", b""): bytes(3 << 20)}))
        admin.config_set("maxmemory", "2mb")
        for value in (b"small", bytes(1 << 20)):
            with pytest.raises(Unavailable, match="has used up its maxmemory: raise it, or delete"):
                store.write(Batch({A: value, B: value, CheckpointId("new", b""): value}))
        assert store.read([A, B]) == [b"kept", None]
        assert sorted(store.groups()) == ["g", "h"]
        gone = Batch()
        gone.delete(CheckpointId("h", b""))
        store.write(gone)
        admin.config_set("maxmemory", "100mb")
        store.write(Batch({A: b"new"}))
        assert store.read([A]) == [b"new"]


def test_a_read_only_replica_is_one_clear_line_and_can_be_read(admin, guarded, fresh):
    with safekeeper.open(fresh(guarded)) as store:
        store.write(Batch({A: b"kept"}))
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(Unavailable, match="is a read-only replica: give the URL of its master"):
            store.write(Batch({A: b"new"}))
        assert store.read([A]) == [b"kept"]


def test_too_few_replicas_for_the_server_itself_are_one_clear_line(admin, guarded, fresh):
    admin.config_set("min-replicas-to-write", "1")
    with pytest.raises(Unavailable, match="has fewer replicas than its min-replicas-to-write"):
        write(fresh(guarded))


def test_too_many_clients_are_one_clear_line(admin, guarded, fresh):
    admin.config_set("maxclients", "1")
    with pytest.raises(Unavailable, match="max number of clients reached"):
        write(fresh(guarded))


def test_a_server_that_appends_nothing_declares_nothing(guarded, fresh):
    with safekeeper.open(fresh(guarded)) as store:
        assert store.survives == Survives.NOTHING
        assert store.write(Batch({A: b""})).survives == Survives.NOTHING
    with pytest.raises(BadUrl, match=r"aof=yes needs Redis 7\.2 or Valkey, with appendonly yes"):
        write(fresh(guarded, aof="yes"))


def test_something_else_under_our_names_is_one_clear_line(admin, guarded, fresh):
    url = fresh(guarded)
    write(url)
    (name,) = admin.scan_iter(f"{url.partition('prefix=')[2]}:*:ids:g")
    admin.set(name, b"a string")
    with pytest.raises(Unavailable, match="has something else under our names: choose another prefix="):
        write(url)


@pytest.mark.parametrize(
    ("rights", "line"),
    (
        (["+@read", "+@write", "+@transaction", "+@scripting"], None),
        (["+@read"], r"does not let this user do that: it needs \+@read \+@write \+@transaction \+@scripting"),
        (["+get"], r"does not let this user do that: it needs \+@read \+@write \+@transaction \+@scripting"),
    ),
    ids=("as documented", "reading only", "none"),
)
def test_a_user_needs_the_rights_that_the_message_says(admin, guarded, fresh, rights, line):
    admin.acl_setuser("user", enabled=True, reset=True, passwords=["+p"], keys=["test-*"], commands=rights)
    url = fresh(guarded).replace(":right@", "user:p@")
    if line is None:
        write(url)
        with safekeeper.open(url) as store:
            assert store.survives == Survives.NOTHING  # it may not ask for the settings
            assert (list(store.groups()), list(store.keys("g")), store.read([A])) == (["g"], [b"a"], [b"value"])
    else:
        with pytest.raises((BadUrl, Unavailable), match=line):
            write(url)


def test_a_user_of_a_cluster_needs_the_rights_that_the_documentation_says(redis_cluster, fresh):
    rights = ["+@read", "+@write", "+@transaction", "+@scripting", "+info", "+cluster|slots", "+asking"]
    with ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in redis_cluster.nodes]
        for client in clients:
            client.acl_setuser("user", enabled=True, reset=True, passwords=["+p"], keys=["test-*"], commands=rights)
        ids = [CheckpointId(f"group{n}", b"key") for n in range(20)]
        with safekeeper.open(fresh(redis_cluster).replace("://", "://user:p@")) as store:
            store.write(Batch(dict.fromkeys(ids, b"value")))
            assert store.read(ids) == [b"value"] * 20
            assert {*store.groups()} == {id.group for id in ids}
        for client in clients:
            client.acl_deluser("user")


def test_a_server_in_protected_mode_is_one_clear_line(tmp_path):
    """It lets in everybody from its own loopback address, so this takes a network of its own with one more address."""
    script = textwrap.dedent(f"""
        set -e
        ip link set lo up
        ip address add 192.0.2.1/32 dev lo
        {find_server("redis-server")} --port 7000 --bind 192.0.2.1 --save '' --dir {tmp_path} > {tmp_path}/log &
        until grep -q 'Ready to accept' {tmp_path}/log; do sleep 0.05; done
        {sys.executable} -c "$CHILD"
        kill $!
    """)
    child = """
import json, safekeeper
try:
    safekeeper.open("redis://192.0.2.1:7000")
except safekeeper.SafekeeperError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": ":".join(sys.path), "CHILD": child},
        capture_output=True,
        text=True,
        check=True,
    )
    kind, line = json.loads(done.stdout)
    assert kind == "BadUrl"
    assert "runs in protected mode, open to its own host only: set a password on it" in line
