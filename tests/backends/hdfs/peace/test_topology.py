"""The network as it is read and written down."""

import random

import pytest

from safekeeper.backends.hdfs.peace.measure import ProbeWriter, Rates, measure_rates
from safekeeper.backends.hdfs.peace.planner import Residual
from safekeeper.backends.hdfs.peace.topology import BadTopology, Topology, link_capacity

NODES = {"10.0.1.1:9866": "/1", "10.0.1.2:9866": "/1", "10.0.2.1:9866": "/2", "10.0.2.2:9866": "/2"}


@pytest.mark.parametrize(
    ("link", "wire", "capacity"), [(110, 110, 2), (550, 110, 10), (30, 110, 1), (165, 110, 3), (40, 40.0, 2)]
)
def test_a_link_takes_what_it_carries_while_a_wire_carries_its_chunks(link, wire, capacity):
    assert link_capacity(link, wire) == capacity


def test_a_file_can_be_written_and_read(tmp_path):
    topology = Topology(NODES, wire=3, link=7, senders={"10.0.1.9": "/1"})
    topology.save(tmp_path / "topology.json")
    assert Topology.load(tmp_path / "topology.json") == topology


def test_the_network_has_a_link_between_two_racks_and_a_switch_between_more():
    network = Topology(NODES, link=5, senders={"10.0.1.9": "/1", "10.0.9.9": "/9"}).network()
    assert network.links["/1"].keys() == {"/2"}
    assert network.capacities[network.links["/2"]["/1"]] == 5
    assert network.nodes["10.0.1.9"].receive == 0
    assert "10.0.9.9" not in network.nodes
    three = Topology({**NODES, "10.0.3.1:9866": "/3"}, link=5).network()
    assert all(len(three.links[rack]) == 1 for rack in ("/1", "/2", "/3"))
    assert Residual(three, random.Random(1)).place("10.0.3.1:9866", 2) is not None


def test_racks_without_a_known_link_are_refused_and_one_rack_needs_none():
    with pytest.raises(BadTopology, match=r"how much goes between 2 racks is not known: .* peace calibrate"):
        Topology(NODES).network()
    assert Topology({"a:1": "/1", "b:1": "/1"}).network().links == {"/1": {}}
    with pytest.raises(BadTopology, match="no DataNode"):
        Topology().network()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read"),
        ("[]", "is no object of JSON"),
        ('{"lank": 3}', "unknown name 'lank' .did you mean 'link'"),
        ('{"link": 0}', "a number of chunks, 1 or more"),
        ('{"wire": true}', "a number of chunks, 1 or more"),
        ('{"nodes": ["a"]}', "an object of addresses"),
        ('{"nodes": {"a": 1}}', "an object of addresses"),
    ],
)
def test_a_bad_file_is_an_error_of_one_line(tmp_path, text, problem):
    (tmp_path / "topology.json").write_text(text)
    with pytest.raises(BadTopology, match=problem) as found:
        Topology.load(tmp_path / "topology.json")
    assert "\n" not in str(found.value)


def writer(host, rack, rates, log):
    """A writer whose rate depends on the rack that it writes to."""

    def write(node, seconds):
        log.append((host, node))
        return rates[NODES[node]]

    return ProbeWriter(host, rack, write)


def test_a_narrow_link_is_found_and_the_own_disk_is_not_measured():
    log = []
    rates = measure_rates([writer("10.0.1.1", "/1", {"/1": 1000, "/2": 250}, log)], NODES, 0)
    assert sorted(log) == [("10.0.1.1", "10.0.1.2:9866")] * 2 + [
        ("10.0.1.1", "10.0.2.1:9866"),
        ("10.0.1.1", "10.0.2.2:9866"),
    ]
    assert rates == Rates(wire=2000, link=500, link_is_least=False)
    assert rates.applied_to(Topology(NODES, wire=8)).link == 2


def test_a_link_that_is_no_narrower_than_the_wire_is_the_least_it_can_be():
    found = Rates(wire=100.0, link=99.0, link_is_least=True).applied_to(Topology(NODES))
    assert found.link == 1
    assert Rates(wire=100.0, link=300.0).applied_to(Topology(NODES)).link == 6
    assert Rates(wire=100.0, link=None).applied_to(Topology({"a:1": "/1"})).link is None


def test_nothing_can_be_measured_where_there_is_nobody_else():
    with pytest.raises(BadTopology, match="no DataNode on another host"):
        measure_rates([writer("10.0.1.1", "/1", {}, [])], {"10.0.1.1:9866": "/1"}, 0)
