"""`objects+s3:` against a real S3 server on loopback, whole and broken."""

import secrets
from contextlib import suppress

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Scope, Survives, Unavailable
from safekeeper.backends.objects.store import S3Store
from safekeeper.testing import BackendContract
from safekeeper.testing.contract.base import LONG
from safekeeper.testing.contract.crash import CrashContract
from safekeeper.testing.contract.create import CreateContract

from .conftest import Fault

A = CheckpointId("g", b"a")
TOKEN, OTHER_TOKEN = b"0123456789abcdef", b"another token..."


if LONG:  # moto is slow; in short form the kit runs on a local folder and in memory

    @pytest.mark.crash
    class TestS3(BackendContract):
        long_examples = 10

        @pytest.fixture
        def url(self, s3, place):
            self.server = s3
            return s3.url(place)

        @pytest.fixture
        def unreachable_url(self, s3, place):
            return s3.url(place, "retries=0", port=1)

        def traces(self, url):
            return self.server.objects(url.removeprefix("objects+s3://").partition("?")[0])


class TestKilledWriters(CrashContract):
    kills = 2
    long_kills = 20

    @pytest.fixture
    def url(self, s3, place):
        return s3.url(place, "assert=process")


class TestCreating(CreateContract):
    @pytest.fixture
    def url(self, s3, place):
        return s3.url(place, "assert=process")


def put(store, value, id=A):
    return store.write(Batch({id: value}))


def create_something(hasty):
    """Let *hasty* make the checks of its first create, however often a slow machine lets them fail."""
    for _ in range(60):
        with suppress(Unavailable):
            assert hasty.create(CheckpointId("g", b"b"), b"", TOKEN)
            return
    pytest.fail("the server does not answer within a second, sixty times")


def delete(store, id=A):
    batch = Batch()
    batch.delete(id)
    store.write(batch)


@pytest.fixture
def store(s3, place, proxy):
    with safekeeper.open(s3.url(place, "retries=0", port=proxy.port)) as store:
        yield store


@pytest.fixture
def hasty(s3, place, proxy):
    """Another handle, for requests that are to fail, if only because the machine is slow."""
    with safekeeper.open(s3.url(place, "retries=0", "timeout=1", port=proxy.port)) as store:
        yield store


@pytest.fixture
def witness(s3, place):
    with safekeeper.open(s3.url(place)) as store:
        yield store


def test_nothing_is_declared_of_what_a_store_somewhere_survives(store, s3, place):
    assert (store.survives, store.scope) == (Survives.NOTHING, Scope.NETWORK)
    with safekeeper.open(s3.url(place, "assert=process,host")) as asserted:
        assert asserted.survives == asserted.asserted == Survives.PROCESS | Survives.HOST


def test_a_write_costs_a_list_and_a_put_and_a_read_a_list_and_a_get(store, proxy):
    put(store, b"1")
    put(store, b"2")
    assert store.read([A]) == [b"2"]
    assert [line.split()[0] for line in proxy.requests] == [*b"GET PUT GET PUT DELETE GET GET".split()]


def test_keys_are_listed_without_reading_values(store, proxy):
    ids = [CheckpointId("g", b"%d" % n) for n in range(5)]
    store.write(Batch(dict.fromkeys(ids, bytes(1000))))
    del proxy.requests[:]
    assert set(store.keys("g")) == {id.key for id in ids}
    assert len(proxy.requests) == 1


FAULTS = {"503": ("503", 0), "no answer": ("silence", 0), "cut": ("cut", 10)}
UPLOAD_FAULTS = {**FAULTS, "cut in the middle": ("cut", 200_000)}


@pytest.mark.parametrize("fault", UPLOAD_FAULTS.values(), ids=UPLOAD_FAULTS)
def test_an_upload_that_fails_is_unavailable_and_leaves_the_old_value(store, hasty, witness, proxy, s3, place, fault):
    put(store, b"old")
    proxy.fault = Fault(b"PUT", *fault)
    with pytest.raises(Unavailable, match=place):
        put(hasty, secrets.token_bytes(1_000_000))
    assert witness.read([A]) == [b"old"]
    assert len(s3.objects(place)) == 1
    proxy.fault = None
    put(store, b"new")
    assert witness.read([A]) == [b"new"]
    assert len(s3.objects(place)) == 1


@pytest.mark.parametrize("fault", UPLOAD_FAULTS.values(), ids=UPLOAD_FAULTS)
def test_a_create_that_fails_creates_nothing(store, hasty, witness, proxy, fault):
    create_something(hasty)
    proxy.fault = Fault(b"PUT", *fault)
    with pytest.raises(Unavailable):
        hasty.create(A, secrets.token_bytes(1_000_000), TOKEN)
    proxy.fault = None
    assert witness.read([A]) == [None]
    assert witness.create(A, b"theirs", OTHER_TOKEN)
    assert not store.create(A, b"mine", TOKEN)


@pytest.mark.parametrize("meanwhile", ("nothing", "created", "written", "deleted"))
def test_a_create_that_arrives_late_is_known_by_its_token_or_does_nothing(store, hasty, witness, proxy, meanwhile):
    assert witness.create(A, b"", OTHER_TOKEN)
    delete(witness)
    create_something(hasty)
    proxy.fault = Fault(b"PUT", "late")
    with pytest.raises(Unavailable):
        hasty.create(A, b"mine", TOKEN)
    proxy.fault = None
    if meanwhile == "created":
        assert witness.create(A, b"theirs", OTHER_TOKEN)
    elif meanwhile != "nothing":
        put(witness, b"written")
        if meanwhile == "deleted":
            delete(witness)
    request = proxy.kept.get(timeout=60)
    if meanwhile == "created":
        with pytest.raises(AssertionError, match="412"):
            proxy.deliver(request)
    else:
        proxy.deliver(request)
    value, created = {
        "nothing": (b"mine", True),
        "created": (b"theirs", False),
        "written": (b"written", False),
        "deleted": (None, True),
    }[meanwhile]
    assert witness.read([A]) == [value]
    assert store.create(A, b"mine", TOKEN) == created
    assert store.create(A, b"theirs", OTHER_TOKEN) == (value == b"theirs")


def test_a_server_that_takes_no_notice_of_conditions_is_refused(monkeypatch, store, s3, place):
    def put_anyway(self, path, pieces):
        self.put(path, pieces)
        return True

    monkeypatch.setattr(S3Store, "put_new", put_anyway)
    with pytest.raises(Unavailable, match="takes no notice of If-None-Match"):
        store.create(A, b"value", TOKEN)
    assert s3.objects(place) == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_failing_request_is_never_mistaken_for_an_absent_id(store, hasty, proxy, fault):
    put(store, b"value")
    proxy.fault = Fault(b"GET", *fault)
    for call in (lambda: hasty.read([A]), lambda: list(hasty.keys("g")), lambda: list(hasty.groups())):
        with pytest.raises(Unavailable):
            call()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_delete_that_fails_leaves_the_value(store, hasty, witness, proxy, fault):
    put(store, b"value")
    proxy.fault = Fault(b"DELETE", *fault)
    with pytest.raises(Unavailable):
        delete(hasty)
    assert witness.read([A]) == [b"value"]
    proxy.fault = None
    delete(store)
    assert witness.read([A]) == [None]


def test_a_value_that_was_written_counts_even_if_the_old_one_cannot_be_deleted(store, witness, proxy, s3, place):
    put(store, b"old")
    proxy.fault = Fault(b"DELETE", "503")
    put(store, b"new")
    assert witness.read([A]) == [b"new"]
    assert len(s3.objects(place)) == 2
    proxy.fault = None
    put(store, b"newest")
    assert witness.read([A]) == [b"newest"]
    assert len(s3.objects(place)) == 1


@pytest.mark.parametrize("kind", ("503", "cut"))
def test_a_passing_fault_is_retried(s3, place, proxy, witness, kind):
    with safekeeper.open(s3.url(place, "retries=2", port=proxy.port)) as store:
        for method in (b"GET", b"PUT"):
            proxy.fault = Fault(method, kind, after=10, times=1)
            put(store, method)
            assert witness.read([A]) == [method]


def test_a_slow_network_is_not_a_failing_one(s3, place, proxy):
    """Both ways take longer than the time-out, but not without progress."""
    value = secrets.token_bytes(4 << 20)
    with safekeeper.open(s3.url(place, "retries=0", "timeout=3", port=proxy.port)) as store:
        proxy.seconds_a_block = 3.6 / (len(value) / 65536)
        put(store, value)
        assert store.read([A]) == [value]


def test_an_upload_that_arrives_late_loses_to_what_was_written_since(s3, place, store, witness, proxy):
    """The client gave up on a request, the network did not."""
    put(store, b"old")
    proxy.fault = Fault(b"PUT", "late")
    with safekeeper.open(s3.url(place, "retries=0", "timeout=5", port=proxy.port)) as hasty:
        with pytest.raises(Unavailable):
            put(hasty, b"late")
        late = proxy.kept.get(timeout=60)
        proxy.fault = None
        put(store, b"new")
        proxy.deliver(late)
        assert witness.read([A]) == [b"new"]
        delete(hasty)
        assert witness.read([A]) == [None]
        proxy.deliver(late)
        assert witness.read([A]) == [None]
    assert list(witness.keys("g")) == list(witness.groups()) == []
    put(witness, b"newest")
    assert store.read([A]) == [b"newest"]


def test_a_bucket_that_does_not_exist_is_not_an_empty_store(s3):
    with safekeeper.open(s3.url(f"nobody-{secrets.token_hex(6)}/x", "retries=0")) as store:
        for call in (
            lambda: store.read([A]),
            lambda: put(store, b""),
            lambda: list(store.keys("g")),
            lambda: list(store.groups()),
        ):
            with pytest.raises(Unavailable, match="bucket does not exist"):
                call()


def test_a_whole_bucket_can_be_the_store(s3):
    with safekeeper.open(s3.url(s3.make_bucket())) as store:
        assert list(store.groups()) == []
        put(store, b"1")
        assert (list(store.groups()), list(store.keys("g")), store.read([A])) == (["g"], [b"a"], [b"1"])
