"""The bytes of a block, which stay as they are."""

import pytest

from safekeeper import BadState, Corruption
from safekeeper.journal import Block, Moment, Outputs

BLOCK = Block(
    at=Moment(7, {"words": 5, "clock": (3, 0)}),
    replay=Moment(4, {"words": 3, "clock": (1, 0)}),
    order=[("words", 2), ("clock", 1)],
    keys=[b"to", b"be", b"or", b"not"],
    kinds=b"ocmx",
    values=[b"\x01", b"\x02", b"\x03", b""],
    out={"counts": Outputs(11, [5, 7], [b"to", b""], [b"1", b"2"])},
    numbers={"counts": 12},
    confirmed={"counts": 10},
    floor={"counts": 9},
    oldest=2,
    live=3,
    serializer="raw",
    rates=(1000.0, 0.0),
)

# Written by version 1. It must open for ever: never change it.
SAMPLE = bytes.fromhex(
    "534b4a3155f471403b8eb5ae008ea26174920782a5776f72647305a5636c6f636b920300a67265706c6179920482a5776f72647303a5"
    "636c6f636b920100a56f726465729292a5776f7264730292a5636c6f636b01a46b65797394c402746fc4026265c4026f72c4036e6f74"
    "a56b696e6473c4046f636d78a676616c75657394c40101c40102c40103c400a36f757481a6636f756e7473940b92050792c402746fc4"
    "0092c40131c40132a76e756d6265727381a6636f756e74730ca9636f6e6669726d656481a6636f756e74730aa5666c6f6f7281a6636f"
    "756e747309a66f6c6465737402a46c69766503aa73657269616c697a6572a3726177a5726174657392cb408f400000000000cb000000"
    "0000000000"
)


def test_the_sample_of_version_1_opens():
    assert Block.decode(SAMPLE) == BLOCK


def test_what_is_written_now_is_what_version_1_wrote():
    assert BLOCK.encode() == SAMPLE


def test_a_block_with_nothing_in_it_comes_back():
    block = Block(Moment(), Moment())
    assert Block.decode(block.encode()) == block


def test_no_changed_byte_goes_unnoticed():
    for at in range(len(SAMPLE)):
        damaged = bytearray(SAMPLE)
        damaged[at] ^= 0x21
        with pytest.raises((Corruption, BadState)):
            Block.decode(bytes(damaged))


@pytest.mark.parametrize("size", [0, 3, 12, 13, len(SAMPLE) - 1])
def test_a_block_that_was_cut_is_damaged(size):
    with pytest.raises(Corruption, match="orders/1"):
        Block.decode(SAMPLE[:size], "orders/1")


def test_a_later_version_is_named_as_one():
    with pytest.raises(BadState, match="later version"):
        Block.decode(b"SKJ2" + SAMPLE[4:])
