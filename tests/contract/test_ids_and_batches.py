import copy
import pickle

import pytest

from safekeeper import MAX_KEY_BYTES, MAX_VALUE_BYTES, BadId, Batch, CheckpointId, Columns, TooLarge

A = CheckpointId("g", b"a")
B = CheckpointId("g", b"b")


@pytest.mark.parametrize(
    ("group", "key", "error", "says"),
    [
        ("", b"", BadId, "1 to 255 bytes"),
        ("x" * 256, b"", BadId, "has 256"),
        ("ü" * 128, b"", BadId, "has 256"),
        ("a\nb", b"", BadId, "control characters"),
        ("a\x7f", b"", BadId, "control characters"),
        ("a\x85", b"", BadId, "control characters"),
        ("\ud800", b"", BadId, "no UTF-8 form"),
        (b"g", b"", BadId, "a group is a str, not bytes"),
        ("g", "\ud800", BadId, "the key '.*' has no UTF-8 form"),
        ("g", 1, BadId, "a key is bytes or str, not int"),
        ("g", bytearray(b"key"), BadId, "a key is bytes or str, not bytearray"),
        ("g", b"x" * (MAX_KEY_BYTES + 1), TooLarge, "at most 32768 bytes"),
    ],
)
def test_a_bad_id_is_refused_with_one_line_that_says_why(group, key, error, says):
    with pytest.raises(error, match=says) as caught:
        CheckpointId(group, key)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("group", ["x" * 255, "ü" * 127, "..", "a/b", " ", "\u2028"])
def test_a_group_may_look_like_anything_else(group):
    assert CheckpointId(group, b"").group == group


def test_an_id_shows_its_key_as_text_and_cuts_a_long_one():
    assert str(CheckpointId("g", b"a\xff")) == "g/a\\xff"
    assert len(str(CheckpointId("g", b"x" * 1000))) < 100


def test_a_key_may_be_given_as_text():
    id = CheckpointId("g", "ä")
    assert id == CheckpointId("g", "ä".encode())
    assert type(id.key) is bytes


def test_an_id_is_a_value_and_stays_valid():
    assert sorted([B, CheckpointId("f", b"z"), A]) == [CheckpointId("f", b"z"), A, B]
    assert {A, CheckpointId("g", "a")} == {A}
    for copied in (copy.copy(A), copy.deepcopy(A), pickle.loads(pickle.dumps(A))):
        assert type(copied) is CheckpointId
        assert copied == A
    assert repr(A) == "CheckpointId(group='g', key=b'a')"
    with pytest.raises(AttributeError):
        A.key = b"b"
    with pytest.raises(BadId, match="control characters"):
        A._replace(group="\n")


def test_the_last_operation_on_an_id_counts():
    batch = Batch()
    batch.put(A, b"1")
    batch.delete(B)
    batch.put(B, b"22")
    batch.put(A, b"333")
    batch.delete(A)
    assert dict(batch.items()) == {A: None, B: b"22"}
    assert (len(batch), batch.nbytes) == (2, len(b"a" + b"b" + b"22"))


def test_a_batch_refuses_a_value_over_the_limit_and_one_that_is_not_bytes():
    batch = Batch()
    with pytest.raises(TooLarge, match="split it"):
        batch.put(A, bytes(MAX_VALUE_BYTES + 1))
    with pytest.raises(TypeError, match="serialize it first"):
        batch.put(A, {"count": 1})
    assert len(batch) == 0


def test_a_batch_of_columns_shows_each_id_once_with_its_last_value():
    batch = Batch.of_columns(Columns.of("g", [b"a", b"b", b"a"], [b"1", b"22", b""]))
    assert dict(batch.items()) == {A: b"", B: b"22"}
    assert len(list(batch.items())) == 2


def test_a_batch_of_columns_takes_no_single_operations():
    batch = Batch.of_columns(Columns.of("g", [b"a"], [b"1"]))
    with pytest.raises(TypeError, match="a batch of their own"):
        batch.put(B, b"2")


@pytest.mark.parametrize("key", [b"\x1b[31m", b"a\nb", "\u202e".encode(), b"\xff\x9b", bytes(range(256))])
def test_an_id_is_shown_in_one_printable_line(key):
    assert str(CheckpointId("group\u202e", key)).isprintable()
