"""Where ids lie in a table of HBase, and what its cells hold."""

import pytest

from safekeeper import Corruption
from safekeeper.backends.hbase.layout import (
    CHECKPOINT,
    CHUNK_BYTES,
    FIRST_GROUP,
    HBaseLargeValue,
    decode,
    encode,
    group_of,
    head_in,
    locate,
    split,
    token_of,
    write_id_of,
)
from safekeeper.backends.shared.checksums import check
from safekeeper.testing import AWKWARD_GROUPS, AWKWARD_IDS

GROUP = locate("g")
TOKEN = b"0123456789abcdef"


def test_every_id_has_a_row_of_its_own_that_hbase_takes():
    rows = {locate(id.group).row(id.key) for id in AWKWARD_IDS.values()}
    assert len(rows) == len(set(AWKWARD_IDS.values()))
    assert all(row >= FIRST_GROUP and 0 < len(row) <= 32_767 for row in rows)


@pytest.mark.parametrize("name", AWKWARD_GROUPS.values(), ids=AWKWARD_GROUPS)
def test_the_rows_of_a_group_lie_together_ids_before_chunks(name):
    group = locate(name)
    row, (head, chunks) = group.row(b"\xff" * 1024), split(group, b"", bytes(CHUNK_BYTES + 1))
    assert len(chunks) == head.chunks == 2
    assert group.ids < row < group.chunks < min(head.rows(group)) < max(head.rows(group)) < group.end
    assert group_of(row) == (group, True)
    assert [group_of(chunk) for chunk in head.rows(group)] == [(group, False)] * 2
    assert {write_id_of(group, chunk) for chunk in head.rows(group)} == {head.write_id}


def test_groups_do_not_reach_into_each_other():
    groups = [locate(name) for name in ("a", "ab", "a ", "a/b", "b", "\U0001f512")]
    for one in groups:
        for other in groups:
            assert (one.ids <= other.row(b"\0\1\2") < one.end) == (one is other)


def test_groups_spread_over_the_table():
    assert len({locate(f"group{n}").ids[:1] for n in range(2000)}) == 256


def test_the_key_of_a_row_comes_back_unless_it_is_long():
    assert GROUP.key(GROUP.row(b"\0k\xff")) == b"\0k\xff"
    assert GROUP.key(GROUP.row(b"h" * 1024)) == b"h" * 1024
    assert GROUP.key(GROUP.row(b"h" * 1025)) is None


def test_every_write_of_a_large_value_has_chunks_of_its_own():
    value = bytes(range(256)) * 10_000
    (one, chunks), (other, _) = split(GROUP, b"k", value), split(GROUP, b"k", value)
    assert set(one.rows(GROUP)).isdisjoint(other.rows(GROUP))
    assert decode(GROUP, b"k", one.encode()) == one
    assert check(GROUP, b"k", one.checksum, b"".join(chunks)) == value
    assert head_in(one.encode()) == one
    assert head_in(other.encode()) == other
    for cell in (encode(GROUP, b"k", bytes(18)), one.encode()[:-1], one.encode() + b"\0", b""):
        assert head_in(cell) is None


@pytest.mark.parametrize(
    "cell",
    (
        b"",
        b"\1",
        encode(GROUP, b"k", b"value")[:-1],
        b"\3" + encode(GROUP, b"k", b"value")[1:],
        b"\5" + encode(GROUP, b"k", b"value")[1:],
        HBaseLargeValue(0, b"", 1).encode()[:-1],
        encode(GROUP, b"k", b"", TOKEN)[:-1],
        b"\1" + encode(GROUP, b"k", b"value", TOKEN)[1:],
        HBaseLargeValue(0, b"", 1, TOKEN).encode()[:-1],
        b"\2" + HBaseLargeValue(0, b"", 1, TOKEN).encode()[1:],
    ),
    ids=(
        "empty",
        "cut in the checksum",
        "cut in the value",
        "written, not created",
        "of another version",
        "cut in the head",
        "cut in the token",
        "created, not written",
        "cut in a head that was created",
        "a head that was created, not written",
    ),
)
def test_a_damaged_cell_is_never_taken_for_a_value(cell):
    with pytest.raises(Corruption, match=r"g/k in row .*: (the checksum does not match|holds no value)"):
        decode(GROUP, b"k", cell)


@pytest.mark.parametrize("token", (b"", TOKEN), ids=("written", "created"))
@pytest.mark.parametrize("bit", range(0, 8 * 14, 5))
def test_any_flipped_bit_is_noticed(bit, token):
    cell = bytearray(encode(GROUP, b"k", b"value", token))
    cell[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corruption):
        decode(GROUP, b"k", bytes(cell))


def test_a_value_in_the_row_of_another_id_does_not_pass():
    for group, key in ((GROUP, b"other"), (locate("other"), b"k")):
        with pytest.raises(Corruption, match="the checksum does not match"):
            decode(group, key, encode(GROUP, b"k", b"value"))


def test_the_bytes_of_a_cell_stay_as_they_are():
    """Those that a store has must open for ever."""
    cells = {
        "01 e8a19615ebacc5ab 76616c7565": None,
        "03 8d16d3ef02c6b603 3031323334353637383961626364656676616c7565": TOKEN,
    }
    for cell, token in cells.items():
        assert decode(GROUP, b"k", bytes.fromhex(cell)) == b"value"
        assert token_of(GROUP, b"k", bytes.fromhex(cell)) == token
    heads = {
        "02 0000000000000001 77726974652069642c207265616c6c790002": HBaseLargeValue(1, b"write id, really", 2),
        "04 0000000000000001 3031323334353637383961626364656677726974652069642c207265616c6c790002": HBaseLargeValue(
            1, b"write id, really", 2, TOKEN
        ),
    }
    for cell, head in heads.items():
        assert decode(GROUP, b"k", bytes.fromhex(cell)) == head == head_in(bytes.fromhex(cell))


def test_a_row_of_somebody_else_is_reported():
    with pytest.raises(Corruption, match="the table is used by somebody else too"):
        group_of(b"user4711")
    assert CHECKPOINT == b"data:checkpoint"
