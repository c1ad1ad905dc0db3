"""The planner: where chunks go."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode
from safekeeper.backends.hdfs.peace.planner import Residual
from safekeeper.backends.hdfs.peace.template import NoPlan, replicas_per_rack

from .networks import check_pipeline, most_per_rack, networks, two_racks, unhurried, used

seeds = st.integers(0, 2**32).map(random.Random)


def place_all(network, generator, replicas):
    """Chunks of every writer in turn until none fits: (writer, pipeline)."""
    residual, placed, writers = Residual(network, generator), [], list(network.nodes)
    while writers:
        for writer in list(writers):
            try:
                pipeline = residual.place(writer, replicas)
            except NoPlan:
                pipeline = None
            if pipeline is None or not pipeline.edges:  # a single replica on the own disk needs no room
                writers.remove(writer)
            if pipeline is not None:
                placed.append((writer, pipeline))
    return residual, placed


@unhurried
@given(networks(), seeds, st.integers(1, 5))
def test_no_edge_is_used_above_its_capacity(network, generator, replicas):
    residual, placed = place_all(network, generator, replicas)
    taken = used(pipeline for _, pipeline in placed)
    assert all(taken[edge] <= capacity for edge, capacity in enumerate(network.capacities))
    assert all(residual.left(edge) == capacity - taken[edge] for edge, capacity in enumerate(network.capacities))


@unhurried
@given(networks(), seeds, st.integers(1, 5))
def test_a_pipeline_is_a_way_through_the_network_that_hdfs_leaves_as_it_is(network, generator, replicas):
    for writer, pipeline in place_all(network, generator, replicas)[1]:
        assert len(pipeline.nodes) == replicas
        check_pipeline(network, writer, pipeline)


@unhurried
@given(networks(), seeds)
def test_replicas_are_in_the_writers_rack_then_in_another_then_in_that_one_where_the_cluster_is_large_enough(
    network, generator
):
    for writer, pipeline in place_all(network, generator, 3)[1]:
        racks = [network.nodes[name].rack for name in pipeline.nodes]
        sizes, home = network.data_nodes, network.nodes[writer].rack
        is_data_node = network.nodes[writer].receive > 0
        if sizes[home] - is_data_node >= 1 and any(size >= 2 for rack, size in sizes.items() if rack != home):
            assert writer not in pipeline.nodes
            assert racks[0] == home
            assert racks[1] != home
            assert racks[2] == racks[1] or sizes[racks[1]] == 1


@unhurried
@given(networks(), seeds, st.integers(1, 5))
def test_what_does_not_fit_takes_nothing(network, generator, replicas):
    residual, _ = place_all(network, generator, replicas)
    for writer in network.nodes:
        before = [residual.left(edge) for edge in range(len(network.capacities))]
        try:
            pipeline = residual.place(writer, replicas)
        except NoPlan:
            pipeline = None
        if pipeline is None:  # another draw may well find room that the one before did not
            assert [residual.left(edge) for edge in range(len(network.capacities))] == before


@unhurried
@given(networks(), seeds, st.integers(1, 4))
def test_what_is_given_back_can_be_taken_again(network, generator, replicas):
    residual, placed = place_all(network, generator, replicas)
    for _, pipeline in placed:
        residual.give_back(pipeline.edges)
    assert all(residual.left(edge) == capacity for edge, capacity in enumerate(network.capacities))
    for writer, _ in placed[:1]:
        assert residual.place(writer, replicas) is not None


def example_of_the_paper(seed):
    """Two switches with two servers each, all capacities 1; 1.1 and 2.1 write one chunk with two replicas each."""
    residual = Residual(two_racks(per_rack=2, wire=1, link=1), random.Random(seed))
    first, second = residual.place("1.1", 2), residual.place("2.1", 2)
    return first.nodes, second and second.nodes


def test_the_papers_example_has_both_of_its_outcomes_about_half_each():
    outcomes = Counter(example_of_the_paper(seed) for seed in range(2000))
    waits, fits = (("1.2", "2.2"), None), (("1.2", "2.1"), ("2.2", "1.1"))
    assert set(outcomes) == {waits, fits}
    assert 850 < outcomes[waits] < 1150  # 6.7 standard deviations; the seeds are fixed besides


def test_equal_servers_are_chosen_equally_often():
    chosen = Counter()
    for seed in range(3000):
        chosen.update(Residual(two_racks(), random.Random(seed)).place("1.1", 3).nodes)
    assert {name for name in chosen if name.startswith("1.")} == {"1.2", "1.3", "1.4"}
    assert all(850 < chosen[name] < 1150 for name in ("1.2", "1.3", "1.4"))
    assert all(1350 < chosen[f"2.{n}"] < 1650 for n in range(1, 5))


def test_a_server_that_cannot_pass_a_chunk_on_is_only_the_last_of_a_pipeline():
    for seed in range(50):
        residual = Residual(two_racks(per_rack=3, wire=1), random.Random(seed))
        residual.take([residual.network.send_edge["1.2"]])
        assert residual.place("1.1", 3).nodes[0] == "1.3"


def test_a_spared_server_passes_on_only_what_no_other_can():
    network = two_racks(wire=1, link=9)
    for seed in range(30):
        residual = Residual(network, random.Random(seed))
        residual.spared = frozenset({"1.2", "1.3", "2.1", "2.2", "2.3"})
        first, second, third = residual.place("1.1", 3).nodes
        assert (first, second) == ("1.4", "2.4")
        assert third in {"2.1", "2.2", "2.3"}  # the last passes nothing on
        residual.spared = frozenset(network.nodes)
        assert residual.place("1.2", 3) is not None


@pytest.mark.parametrize(
    ("sizes", "writer", "replicas", "racks"),
    [
        ([4, 4], "0.0", 3, "011"),
        ([4, 4], "0.0", 2, "01"),
        ([4, 4], "0.0", 1, "0"),
        ([4, 4], "0.0", 4, "0111"),
        ([3], "0.0", 2, "00"),
        ([3, 1], "0.0", 3, "001"),
        ([1, 3, 3], "0.0", 2, "11"),
        ([4, 1], "1.0", 3, "100"),
    ],
    ids=lambda value: str(value),
)
def test_racks_of_the_replicas(sizes, writer, replicas, racks):
    names = [f"/{rack}" for rack in range(len(sizes))]
    links = [Link(a, b, 9) for a in names for b in names if a != b]
    network = Network([NetworkNode(f"{r}.{n}", f"/{r}") for r, size in enumerate(sizes) for n in range(size)], links)
    found = Residual(network, random.Random(1)).place(writer, replicas).nodes
    assert "".join(name[0] for name in found).replace("2", "1") == racks
    assert (writer in found) == (writer == "1.0")  # alone in its rack, and no rack takes all three


def test_the_own_disk_is_used_only_where_the_others_are_too_few():
    network = Network([NetworkNode(f"0.{n}", "/0") for n in range(3)])
    pipeline = Residual(network, random.Random(1)).place("0.0", 3)
    assert pipeline.nodes[0] == "0.0"
    assert len(pipeline.edges) == 4  # two hops; nothing goes over a wire for the first replica


def test_more_replicas_than_servers_have_no_plan():
    with pytest.raises(NoPlan, match=r"5 replicas of a chunk of 1\.1 have no room on 4 servers"):
        Residual(two_racks(per_rack=2), random.Random(1)).place("1.1", 5)


def test_a_server_that_is_no_data_node_sends_from_its_rack():
    residual = Residual(two_racks(), random.Random(1))
    residual.add_sender("driver", "/2")
    assert [name[0] for name in residual.place("driver", 3).nodes] == ["2", "1", "1"]
    with pytest.raises(NoPlan, match="laptop is on no known rack"):
        residual.add_sender("laptop", "/9")


def test_racks_without_a_way_between_them_are_refused():
    with pytest.raises(ValueError, match="there is no way from /0 to /1: give the links"):
        Network([NetworkNode("0.0", "/0"), NetworkNode("1.0", "/1")])


@pytest.mark.parametrize(
    "bad", [lambda: NetworkNode("a", "/1", send=0), lambda: Link("/1", "/2", 0)], ids=["wire", "link"]
)
def test_an_edge_without_capacity_is_refused(bad):
    with pytest.raises(ValueError, match="one chunk a timestep is the least"):
        bad()


@unhurried
@given(st.integers(1, 12), st.integers(1, 6))
def test_the_limit_per_rack_is_the_name_nodes(replicas, racks):
    assert replicas_per_rack(replicas, racks) == most_per_rack(replicas, racks)


class Counting(random.Random):
    """A generator that counts what it is asked for: each step of a search draws once."""

    draws = 0

    def random(self):
        self.draws += 1
        return super().random()


def test_the_work_for_a_chunk_does_not_grow_with_the_number_of_servers():
    def draws_per_chunk(per_rack):
        racks = [f"/{rack}" for rack in range(10)]
        links = [link for rack in racks for link in (Link(rack, "/core", 999), Link("/core", rack, 999))]
        network = Network([NetworkNode(f"{rack}.{n}", rack) for rack in racks for n in range(per_rack)], links)
        generator = Counting(1)
        placed = place_all(network, generator, 3)[1]
        return generator.draws / len(placed)

    assert draws_per_chunk(100) < 1.3 * draws_per_chunk(10)
