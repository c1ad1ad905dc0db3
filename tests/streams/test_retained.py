"""What is retained for whom, in memory: any order of sends and acknowledgements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper import Gone, QueueFull
from safekeeper.streams import StreamElement
from safekeeper.streams.retained import Retained, Retention
from safekeeper.testing.sending import numbered

READERS = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("acknowledge"), st.sampled_from(READERS), st.integers(-2, 6)),
        st.tuples(st.just("after"), st.integers(0, 30), st.none() | st.integers(0, 5)),
    )
)


@given(STEPS, st.integers(0, 3), st.integers(0, 100))
def test_what_somebody_still_needs_is_there_and_nothing_else(steps, readers, floor):
    names = READERS[:readers]
    retained = Retained(names, floor=floor)
    sent, upto = [], dict.fromkeys(names, floor)
    for step, one, two in steps:
        last = floor + len(sent)
        if step == "send":
            sent += [StreamElement(last + n, b"%d" % n, b"k" * n) for n in range(1, one + 1)]
            retained.append(sent[max(0, last - floor - two) :])
        elif step == "acknowledge":
            wanted = upto.get(one, floor) + two
            if wanted > last:
                with pytest.raises(ValueError, match="ends at"):
                    retained.acknowledge(one, wanted)
            else:
                before = len(retained)
                assert retained.acknowledge(one, wanted) == before - len(retained)
                if one in upto:
                    upto[one] = max(upto[one], wanted)
        else:
            lowest = min(upto.values(), default=last)
            if one + floor < lowest:
                with pytest.raises(Gone, match=f"begin after {lowest}"):
                    retained.after(one + floor, two)
            else:
                rest = sent[one:]
                assert retained.after(one + floor, two) == (rest if two is None else rest[:two])
        lowest = min(upto.values(), default=floor + len(sent))
        needed = sent[lowest - floor :]
        assert retained.acknowledged == upto
        assert (retained.last, retained.floor, len(retained)) == (floor + len(sent), lowest, len(needed))
        assert retained.nbytes == sum(len(element.key) + len(element.body) for element in needed)


@given(st.lists(st.tuples(st.sampled_from(READERS), st.integers(0, 20))), st.integers(1, 5))
def test_nobody_is_ever_further_behind_than_is_allowed(steps, most):
    retained = Retained(READERS, retention=Retention(most, "drop-reader"))
    for reader, upto in steps:
        dropped = retained.append(numbered(retained.last + 1, b"x"))
        assert not set(dropped) & set(retained.acknowledged)
        retained.acknowledge(reader, min(upto, retained.last))
        assert len(retained) <= most
        assert all(retained.last - far <= most for far in retained.acknowledged.values())


def test_a_full_stream_takes_nothing_until_its_slowest_reader_gets_on():
    retained = Retained(["quick", "slow"], retention=Retention(2))
    retained.append(numbered(1, b"a", b"b"))
    retained.acknowledge("quick", 2)
    with pytest.raises(QueueFull, match="stream words holds 4 elements for its reader slow"):
        retained.append(numbered(1, b"a", b"b", b"c", b"d"), "words")
    assert retained.last == 2
    retained.acknowledge("slow", 1)
    retained.append(numbered(3, b"c"), "words")
    assert retained.after(1) == numbered(2, b"b", b"c")


def test_a_gap_is_refused():
    retained = Retained(["r"])
    with pytest.raises(Gone, match="ends at 0, and the next element is 2"):
        retained.append(numbered(2, b"b"))
    assert len(retained) == 0


@pytest.mark.parametrize("settings", ({"max_elements": 0}, {"max_elements": -1}, {"when_full": "never"}))
def test_bounds_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="takes"):
        Retention(**settings)
