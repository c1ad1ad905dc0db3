import numpy as np
import pyarrow as pa
import pytest

from safekeeper import MAX_KEY_BYTES, MAX_VALUE_BYTES, BadId, Column, Columns, TooLarge

ITEMS = [b"", b"a", b"\0\xff", b"long" * 100]


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(ITEMS, id="a list of bytes"),
        pytest.param(pa.array(ITEMS, pa.binary()), id="binary"),
        pytest.param(pa.array(ITEMS, pa.large_binary()), id="large_binary"),
        pytest.param(pa.array([b"x", *ITEMS, b"y"], pa.binary())[1:-1], id="a slice"),
        pytest.param(pa.chunked_array([ITEMS[:2], ITEMS[2:]], pa.binary()), id="chunks"),
    ],
)
def test_a_column_holds_the_items_it_was_made_of(array):
    column = Column.of(array)
    assert [column[i] for i in range(len(column))] == ITEMS
    assert column.nbytes == sum(map(len, ITEMS))


@pytest.mark.parametrize("empty", [[], pa.array([], pa.binary()), pa.array([b"a"], pa.binary())[1:]])
def test_an_empty_column_is_a_column(empty):
    column = Column.of(empty)
    assert (len(column), column.nbytes, column.longest()) == (0, 0, 0)


def test_arrow_data_is_not_copied():
    array = pa.array([b"x" * 1000] * 1000, pa.binary())
    column = Column.of(array)
    assert np.frombuffer(column.data, np.uint8).ctypes.data == array.buffers()[2].address


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (pa.array([1, 2]), "not int64"),
        (pa.array([b"a", None], pa.binary()), "no nulls"),
    ],
)
def test_an_array_that_is_no_column_is_refused(array, says):
    with pytest.raises(TypeError, match=says):
        Column.of(array)


def test_columns_are_checked_like_single_ids():
    with pytest.raises(BadId, match="2 keys and 1 values"):
        Columns.of("g", [b"a", b"b"], [b"1"])
    with pytest.raises(BadId, match="1 to 255"):
        Columns.of("", [], [])
    with pytest.raises(TooLarge, match="a key has at most"):
        Columns.of("g", [b"k" * (MAX_KEY_BYTES + 1)], [b""])
    with pytest.raises(TooLarge, match="a value has at most"):
        Columns.of("g", [b"k"], [bytes(MAX_VALUE_BYTES + 1)])
