"""The distributions are YCSB's: each is compared with its probabilities, worked out here in another way."""

import numpy as np
import pytest

from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.ycsb.generators import (
    SCRAMBLED_ITEMS,
    SCRAMBLED_ZETA,
    THETA,
    ExponentialChooser,
    HotspotChooser,
    LatestChooser,
    Lengths,
    ScrambledZipfianChooser,
    SequentialChooser,
    UniformChooser,
    Zeta,
    Zipfian,
    fnv64,
    fnv64_of,
)
from safekeeper.bench.ycsb.properties import YcsbSettings, load_file
from safekeeper.bench.ycsb.runner import Runner
from safekeeper.bench.ycsb.workload import Workload

DRAWS = 200_000


def chi_square_bound(degrees):
    """What chi-square exceeds once in 100,000 times, by Wilson and Hilferty. The seeds are fixed: no luck is needed."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4.27 * spread**0.5) ** 3


def assert_distributed(draws, probabilities):
    """That *draws*, numbers from 0 on, have these *probabilities*; rare ones are put together."""
    draws, probabilities = np.asarray(draws), np.asarray(probabilities)
    assert draws.min() >= 0
    assert draws.max() < len(probabilities)
    expected = probabilities * len(draws)
    bins = np.minimum(np.cumsum(expected) // 20, sum(expected) // 20 - 1).astype(int)
    _, bins = np.unique(bins, return_inverse=True)
    wanted = np.bincount(bins, expected)
    found = np.bincount(bins, np.bincount(draws, minlength=len(probabilities)))
    assert ((found - wanted) ** 2 / wanted).sum() < chi_square_bound(len(wanted) - 1)


def zipfian_probabilities(items, zeta, upto=None, began_with=None):
    """Gray's approximation as a distribution: the first two ranks exactly, the others between two inverses of it. YCSB
    keeps the number of items that it began with in one place of it."""
    eta = (1 - (2 / (began_with or items)) ** (1 - THETA)) / (1 - (1 + 0.5**THETA) / zeta)
    ranks = np.arange(2, (upto or items) + 1)
    below = 1 - (1 - (ranks / items) ** (1 - THETA)) / eta
    below = np.concatenate(([0, 1 / zeta], np.maximum(below, (1 + 0.5**THETA) / zeta)))
    return np.diff(below)


def scrambled_probabilities(records):
    """How often YCSB's scrambled zipfian generator draws each of *records* numbers."""
    named = 1_000_000  # ranks beyond are so rare and so many that their hashes spread evenly
    probabilities = zipfian_probabilities(SCRAMBLED_ITEMS, SCRAMBLED_ZETA, named)
    expected = np.bincount(fnv64(np.arange(named)) % records, probabilities, minlength=records)
    return expected + (1 - probabilities.sum()) / records


def test_both_forms_of_the_hash_agree():
    numbers = [0, 1, 255, 256, 10**10, 2**63 - 1]
    assert fnv64(np.array(numbers)).tolist() == [fnv64_of(number) for number in numbers]


@pytest.fixture
def random():
    return np.random.default_rng(14)


def test_the_test_can_fail(random):
    with pytest.raises(AssertionError):
        assert_distributed(random.integers(0, 100, DRAWS), zipfian_probabilities(100, Zeta().of(100)))
    with pytest.raises(AssertionError):
        assert_distributed(np.minimum(random.integers(0, 101, DRAWS), 99), np.full(100, 0.01))


def test_zipfian_ranks_have_ycsbs_probabilities(random):
    assert_distributed(Zipfian(random).draw(DRAWS, 1000), zipfian_probabilities(1000, Zeta().of(1000)))


def test_zipfian_ranks_are_zipfs_but_for_the_approximation(random):
    found = np.bincount(Zipfian(random).draw(DRAWS, 1000), minlength=1000).cumsum() / DRAWS
    exact = (1 / np.arange(1, 1001) ** THETA).cumsum() / Zeta().of(1000)
    assert np.abs(found - exact).max() < 0.03


@pytest.mark.parametrize("items", (1, 2, 3))
def test_zipfian_copes_with_few_items(random, items):
    assert set(Zipfian(random).draw(1000, items)) == set(range(items))


def test_a_zeta_that_grows_is_the_same_as_one_made_at_once():
    growing = Zeta()
    for items in (1, 10, 1000, 1001):
        growing.of(items)
    assert growing.of(5000) == pytest.approx(Zeta().of(5000), rel=1e-12)
    assert Zeta().of(3) == pytest.approx(1 + 2**-THETA + 3**-THETA)


@pytest.mark.parametrize("records", (1000, 1101))
def test_scrambled_zipfian_has_the_same_popular_records_as_ycsb(random, records):
    draws = ScrambledZipfianChooser(random, 50, records).draw(DRAWS, 0) - 50
    assert_distributed(draws, scrambled_probabilities(records))


def test_uniform_is_uniform(random):
    assert_distributed(UniformChooser(random, 7, 100).draw(DRAWS, 0) - 7, np.full(100, 0.01))


def test_a_hotspot_gets_its_share_and_both_parts_are_uniform(random):
    draws = HotspotChooser(random, 7, 100, 0.2, 0.8).draw(DRAWS, 0) - 7
    assert_distributed(draws, np.concatenate((np.full(20, 0.04), np.full(80, 0.0025))))


@pytest.mark.parametrize(("hot_share", "hot_operations"), ((0.0, 0.8), (1.0, 0.8)))
def test_a_hotspot_of_nothing_or_of_everything_is_uniform(random, hot_share, hot_operations):
    draws = HotspotChooser(random, 0, 10, hot_share, hot_operations).draw(DRAWS, 0)
    assert_distributed(draws, np.full(10, 0.1))


def test_exponential_puts_the_percentile_into_the_span(random):
    draws = ExponentialChooser(random, 95, 857.0).draw(DRAWS, 999)
    rate = -np.log(0.05) / 857
    probabilities = -np.diff(np.exp(-rate * np.arange(5001)))
    assert_distributed(np.minimum(draws, 4999), probabilities + np.exp(-rate * 5000) / 5000)


def test_latest_prefers_the_newest(random):
    assert_distributed(LatestChooser(random).draw(DRAWS, 999), zipfian_probabilities(999, Zeta().of(999)))


def test_sequential_takes_turns():
    chooser = SequentialChooser(5, 3)
    assert [*chooser.draw(4, 0), *chooser.draw(3, 0)] == [5, 6, 7, 5, 6, 7, 5]


@pytest.mark.parametrize(
    ("distribution", "probabilities"),
    (
        ("constant", np.concatenate((np.zeros(99), [1]))),
        ("uniform", np.full(100, 0.01)),
        ("zipfian", zipfian_probabilities(100, Zeta().of(100))),
    ),
)
def test_lengths_go_from_the_least_to_the_most(random, distribution, probabilities):
    draws = Lengths(random, distribution, 1, 100).draw(DRAWS) - 1
    if distribution == "constant":
        assert set(draws) == {99}
    else:
        assert_distributed(draws, probabilities)


# --- the six workloads of YCSB, from the file to the store ---

RECORDS, OPERATIONS = 1000, 20_000


def chosen(name):
    """The record that each operation of a workload went to, and the newest record at that moment; no inserts."""
    asked = []

    class Watched(MemoryBackend):
        def read(self, ids):
            asked.append(ids[0])
            return super().read(ids)

        def write(self, batch):
            asked.extend(id for id, _ in batch.items())
            return super().write(batch)

    workload = Workload(YcsbSettings.of(load_file(name) | {"operationcount": str(OPERATIONS), "seed": "14"}))
    runner = Runner(workload, Watched())
    runner.load()
    asked.clear()
    runner.run()
    number_of = {workload.ids[number]: number for number in range(RECORDS + OPERATIONS)}
    newest, found = RECORDS - 1, []
    for number in (number_of[id] for id in asked):
        if number > newest:
            newest = number
        else:
            found.append((number, newest))
    return np.array(found).T


@pytest.mark.parametrize("name", ("workloada", "workloadb", "workloadc", "workloadf"))
def test_the_records_of_a_zipfian_workload_have_ycsbs_probabilities(name):
    numbers, _ = chosen(name)
    if name == "workloadf":  # a read-modify-write asks for its record twice, one after the other
        numbers = numbers[np.r_[True, numbers[1:] != numbers[:-1]]]
    probabilities = scrambled_probabilities(RECORDS + 1)[:RECORDS]  # what is behind the last record is drawn again
    assert_distributed(numbers, probabilities / probabilities.sum())


def test_the_records_of_workload_d_have_ycsbs_probabilities_of_their_age():
    numbers, newest = chosen("workloadd")
    assert newest[-1] > RECORDS + OPERATIONS * 0.04
    probabilities = np.zeros(newest[-1])
    for items, reads in zip(*np.unique(newest, return_counts=True), strict=True):
        probabilities[:items] += zipfian_probabilities(items, Zeta().of(items), began_with=RECORDS - 1) * reads
    assert_distributed(newest - numbers, probabilities / len(numbers))


def test_the_first_records_of_the_scans_of_workload_e_have_ycsbs_probabilities():
    numbers, newest = chosen("workloade")
    drawn = scrambled_probabilities(RECORDS + OPERATIONS * 5 // 100 * 2 + 1)  # also those that the run may insert
    probabilities = np.zeros(newest[-1] + 1)
    for last, scans in zip(*np.unique(newest, return_counts=True), strict=True):
        probabilities[: last + 1] += drawn[: last + 1] / drawn[: last + 1].sum() * scans
    assert_distributed(numbers, probabilities / len(numbers))
