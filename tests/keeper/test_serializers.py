from __future__ import annotations

import datetime
import importlib
import resource
import subprocess
import sys

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper import BadState, CheckpointId, Corruption, SafeKeeper, TooLarge
from safekeeper.keeper.serializers import Codec, serializer_named

ID = CheckpointId("group", b"key")

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(state=plain)
def test_msgpack_gives_back_what_it_got(state):
    codec = Codec(serializer_named("msgpack"))
    assert codec.decode(codec.encode(state)) == state


def test_msgpack_takes_bytes_other_keys_and_times():
    codec = Codec(serializer_named("msgpack"))
    state = {1: b"bytes", b"key": datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)}
    assert codec.decode(codec.encode(state)) == state


@settings(deadline=None)
@given(state=plain)
def test_json_gives_back_what_it_got(state):
    codec = Codec(serializer_named("json"))
    assert codec.decode(codec.encode(state)) == state


@settings(deadline=None)
@given(state=st.binary())
def test_raw_gives_back_what_it_got(state):
    codec = Codec(serializer_named("raw"))
    assert codec.decode(codec.encode(state)) == state


def test_arrow_gives_back_a_table():
    pyarrow = importlib.import_module("pyarrow")
    codec = Codec(serializer_named("arrow"))
    table = pyarrow.table({"word": ["foo", "bar"], "count": [1, 2]})
    assert codec.decode(codec.encode(table)) == table


def test_pickle_gives_back_anything_when_asked_for():
    codec = Codec(serializer_named("pickle"))
    assert codec.decode(codec.encode({1, 2, (3,)})) == {1, 2, (3,)}


class Bomb:
    def __reduce__(self):
        return (exec, ("raise AssertionError('it was unpickled')",))


@pytest.mark.parametrize("reader", ("msgpack", "raw", "json", "arrow"))
def test_reading_with_another_serializer_is_an_error_and_runs_nothing(reader):
    if reader == "arrow":
        importlib.import_module("pyarrow")
    written = Codec(serializer_named("pickle")).encode(Bomb())
    with pytest.raises(BadState, match=f"written by the serializer 'pickle', this keeper has '{reader}'"):
        Codec(serializer_named(reader)).decode(written)


@pytest.mark.parametrize("data", (b"", b"41", b"SKS1", b"SKS1" + bytes(11), b"SKS2" + bytes(50)), ids=repr)
def test_bytes_without_a_header_are_no_state(data):
    with pytest.raises(BadState, match="carries no serializer's header"):
        Codec(serializer_named("msgpack")).decode(data)


@pytest.mark.parametrize("compression", (None, "zstd"))
def test_every_flipped_bit_is_noticed(compression):
    if compression:
        importlib.import_module("zstandard")
    codec = Codec(serializer_named("msgpack"), compression=compression)
    good = codec.encode({"word": "foo" * 10, "count": 41})
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Corruption, BadState)):
            codec.decode(bytes(bad))
        if bit >= 32:
            with pytest.raises(Corruption, match="checksum"):
                codec.decode(bytes(bad))
    for size in range(len(good)):
        with pytest.raises((Corruption, BadState)):
            codec.decode(good[:size])


def test_compression_is_used_where_it_helps_and_read_by_everybody():
    importlib.import_module("zstandard")
    packed, plain = Codec(serializer_named("raw"), compression="zstd"), Codec(serializer_named("raw"))
    assert len(packed.encode(bytes(10_000))) < 200
    assert packed.encode(b"x") == plain.encode(b"x")
    assert plain.decode(packed.encode(bytes(10_000))) == bytes(10_000)
    assert packed.decode(plain.encode(bytes(10_000))) == bytes(10_000)


def test_the_bytes_are_frozen():
    """Stores hold them: whoever changes this needs another mark."""
    mark, head, payload = b"SKS1", b"\x00\x02\x01\x07msgpack", bytes.fromhex("81a16e01")
    checksum = xxhash.xxh3_64_intdigest(payload, seed=xxhash.xxh3_64_intdigest(head))
    assert checksum == 0x3BC290A9D36AEE92
    written = mark + checksum.to_bytes(8, "little") + head + payload
    assert Codec(serializer_named("msgpack"), schema=258).encode({"n": 1}) == written


def test_older_states_are_migrated():
    old = Codec(serializer_named("msgpack"), schema=1).encode({"n": 41})

    def migrate(state, version):
        assert version == 1
        return {"count": state["n"]}

    assert Codec(serializer_named("msgpack"), schema=3, migrate=migrate).decode(old) == {"count": 41}
    with pytest.raises(BadState, match="give the keeper a migrate="):
        Codec(serializer_named("msgpack"), schema=3).decode(old)
    with pytest.raises(BadState, match="has schema version 1, this application knows 0"):
        Codec(serializer_named("msgpack"), migrate=migrate).decode(old)


def test_a_keeper_migrates_what_it_fetches_and_names_the_id_of_what_it_cannot_read(store):
    with SafeKeeper(store, schema=1) as keeper:
        keeper.save(ID, {"n": 41}).result()
    with SafeKeeper(store, schema=2, migrate=lambda state, version: {"count": state["n"]}) as keeper:
        assert keeper.fetch(ID) == {"count": 41}
        assert dict(keeper.recover("group")) == {b"key": {"count": 41}}
    with SafeKeeper(store, serializer="json") as keeper, pytest.raises(BadState, match="group/key: was written by"):
        keeper.fetch(ID)


def test_without_a_serializer_bytes_are_stored_as_they_are(store):
    with SafeKeeper(store, serializer=None) as keeper:
        keeper.save(ID, b"41").result()
        assert store.read([ID]) == [b"41"]
        assert keeper.fetch(ID) == b"41"
        with pytest.raises(BadState, match="a state is bytes, not str"):
            keeper.save(ID, "41").result()


@pytest.mark.parametrize("module", ("pyarrow", "zstandard", "asyncio", "msgpack"))
def test_importing_safekeeper_does_not_import_what_may_not_be_needed(module):
    program = f"import sys, safekeeper; sys.exit({module!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_zstandard_what_was_compressed_says_what_to_install(monkeypatch):
    packed = Codec(serializer_named("raw"), compression="zstd").encode(bytes(10_000))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(BadState, match=r"pip install 'safekeeper\[zstd\]'"):
        Codec(serializer_named("raw")).decode(packed)


def sealed(name: bytes, payload: bytes, flags: int = 0) -> bytes:
    """What a codec would write, with any name and payload."""
    head = bytes([flags, 0, 0, len(name)]) + name
    checksum = xxhash.xxh3_64_intdigest(payload, seed=xxhash.xxh3_64_intdigest(head))
    return b"SKS1" + checksum.to_bytes(8, "little") + head + payload


def test_a_serializers_name_that_is_not_utf8_is_no_state():
    with pytest.raises(BadState, match="not UTF-8"):
        Codec(serializer_named("raw")).decode(sealed(b"\xff\xfe", b"x"))


@pytest.mark.parametrize("says_its_size", (True, False), ids=("says its size", "does not say its size"))
def test_a_small_value_does_not_unpack_to_more_than_the_limit(says_its_size):
    """Here 1 GiB of zeros, in 32 KiB. Had it been unpacked, the process would have grown by it."""
    zstandard = importlib.import_module("zstandard")
    compressor = zstandard.ZstdCompressor().compressobj(size=1 << 30 if says_its_size else -1)
    bomb = b"".join([compressor.compress(bytes(1 << 20)) for _ in range(1024)]) + compressor.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadState, match="more than 268435456 bytes: if that is what was saved, give the"):
        Codec(serializer_named("raw")).decode(sealed(b"raw", bomb, flags=1))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000, "KiB"


@pytest.mark.parametrize("says_its_size", (True, False), ids=("says its size", "does not say its size"))
def test_what_is_within_the_limit_is_unpacked_whether_or_not_it_says_its_size(says_its_size):
    zstandard = importlib.import_module("zstandard")
    compressor = zstandard.ZstdCompressor().compressobj(size=5_000_000 if says_its_size else -1)
    packed = sealed(b"raw", compressor.compress(bytes(5_000_000)) + compressor.flush(), flags=1)
    assert Codec(serializer_named("raw"), unpacked_limit=5_000_000).decode(packed) == bytes(5_000_000)
    with pytest.raises(BadState, match="more than 4999999 bytes"):
        Codec(serializer_named("raw"), unpacked_limit=4_999_999).decode(packed)


def test_a_state_over_the_limit_is_refused_when_it_is_saved(store):
    importlib.import_module("zstandard")
    with SafeKeeper(store, serializer="raw", compression="zstd", unpacked_limit=10_000) as keeper:
        keeper.save(ID, bytes(10_000)).result()
        with pytest.raises(TooLarge, match="10001 bytes before it is compressed"):
            keeper.save(ID, bytes(10_001)).result()
        assert keeper.fetch(ID) == bytes(10_000)
