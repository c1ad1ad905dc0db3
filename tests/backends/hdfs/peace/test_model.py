"""What an administrator writes down of a network, and that the plan follows it."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode
from safekeeper.backends.hdfs.peace.planner import Residual
from safekeeper.backends.hdfs.peace.schedule import ChunkRequest, Schedule
from safekeeper.backends.hdfs.peace.template import AFTER, NoPlan, Place, check_places
from safekeeper.backends.hdfs.peace.topology import BadTopology, Cable, ServerCapacity, Topology

from .networks import hdfs_order, most_per_rack, unhurried

SAMPLES = Path(__file__).parent / "samples"
EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "topology.json"
NODES = {f"10.0.{rack}.{n}:9866": f"/rack{rack}" for rack in (1, 2, 3) for n in (1, 2, 3, 7)}


def test_a_file_of_version_1_opens():
    topology = Topology.load(SAMPLES / "topology-1.json")
    assert topology == Topology(
        {"10.0.1.1:9866": "/rack1", "10.0.2.1:9866": "/rack2"}, 2, 5, {"10.0.1.9": "/rack1"}, {}, (), ()
    )


def test_the_example_of_the_documentation_is_a_network():
    topology = Topology.load(EXAMPLE)
    assert topology.wire == 2
    assert topology.servers["10.0.1.7"] == ServerCapacity(20, 20, 4)
    assert topology.servers["10.0.2.3"] == ServerCapacity(disk=1)
    assert topology.cables[2] == Cable("/rack3", "row2", 20, 8)
    network = topology.with_nodes(NODES).network()
    assert network.nodes["10.0.1.7:9866"] == NetworkNode("10.0.1.7:9866", "/rack1", 20, 20, 4)
    assert network.links["row1"].keys() == {"/rack1", "/rack2", "row2"}
    residual = Residual(network, random.Random(1))
    for _ in range(20):
        found = residual.place("10.0.3.1:9866", 3)
        if found is not None:
            racks = [network.nodes[name].rack for name in found.nodes]
            assert racks[0] == "/rack3"
            assert racks[1] == racks[2] != "/rack3"


def test_what_is_written_is_read_again(tmp_path):
    topology = Topology(
        {"a:1": "/1", "b:1": "/2"},
        3,
        None,
        {"c": "/1"},
        {"a": ServerCapacity(disk=2)},
        (Cable("/1", "/2", 4, 5),),
        (Place.SAME_NODE, Place.OTHER_RACK),
    )
    topology.save(tmp_path / "topology.json")
    assert Topology.load(tmp_path / "topology.json") == topology


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"version": 2}', "version is 2: this release reads 1"),
        ('{"unit": "MB"}', "unit is 'MB': it is chunks or Mbit/s"),
        ('{"unit": "Mbit/s", "link": 5}', "wire is needed"),
        ('{"unit": "Mbit/s", "wire": 0}', "wire is 0: it is a rate in Mbit/s, above 0"),
        ('{"wire": 1.5}', "a number of chunks, 1 or more"),
        ('{"servers": []}', "servers is an object of hosts"),
        ('{"servers": {"a": {"sent": 1}}}', "server a has an unknown name 'sent'.*did you mean 'send'"),
        ('{"servers": {"a": {"disk": 0}}}', "disk of server a is 0: it is a number of chunks, 1 or more"),
        ('{"links": {}}', "links is a list of objects such as"),
        ('{"links": [{"between": ["a"], "capacity": 1}]}', "a list of two switches"),
        ('{"links": [{"between": ["a", "b"]}]}', "the link between a and b has no capacity"),
        ('{"links": [{"between": ["a", "b"], "capacity": 0}]}', "capacity of the link between a and b is 0"),
        ('{"links": [{"between": ["a", "b"], "capacity": 1}], "link": 2}', "not both"),
        (
            '{"links": [{"between": ["a", "b"], "capacity": 1}, {"between": ["b", "c"], "capacity": 1}, '
            '{"between": ["c", "a"], "capacity": 1}]}',
            "the link between c and a closes a ring: switches are a tree",
        ),
        ('{"replicas": "same rack"}', "a list with a word for each"),
        ('{"replicas": ["same rak"]}', "replica 1 is 'same rak'.*did you mean 'same rack'"),
        ('{"replicas": [1]}', "replica 1 is 1; known: same node"),
    ],
)
def test_a_bad_file_is_an_error_of_one_line_that_says_where(tmp_path, text, problem):
    (tmp_path / "topology.json").write_text(text)
    with pytest.raises(BadTopology, match=problem) as found:
        Topology.load(tmp_path / "topology.json")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("topology", "problem"),
    [
        (Topology(NODES, cables=[Cable("/rack1", "/rack2", 1, 1)]), "there is no way from /rack. to /rack"),
        (Topology(NODES, link=2, places=[Place.THAT_RACK]), "replica 1 is 'that rack', at first HDFS honours only"),
        (
            Topology(NODES, link=2, places=[Place.OTHER_RACK, Place.SAME_RACK]),
            "replica 2 is 'same rack', after 'other rack' HDFS honours only 'that rack', 'other rack'",
        ),
        (
            Topology(NODES, link=2, places=[Place.SAME_NODE, Place.SAME_RACK, Place.SAME_RACK]),
            "3 of 3 replicas are in one rack: with 3 HDFS allows 2",
        ),
        (Topology({"a:1": "/1"}, places=[Place.OTHER_RACK]), "the replicas are in 2 racks: there are 1"),
    ],
)
def test_what_hdfs_would_not_honour_is_refused_in_one_line(topology, problem):
    with pytest.raises(BadTopology, match=problem) as found:
        topology.network()
    assert "\n" not in str(found.value)


@st.composite
def written_down(draw):
    """A star of racks and a template that HDFS honours there, with a writer."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    nodes = [
        NetworkNode(f"{rack}.{n}", f"/{rack}", 3, 3, draw(st.none() | st.integers(1, 3)))
        for rack, size in enumerate(sizes)
        for n in range(size)
    ]
    nodes.append(NetworkNode("0.sender", "/0", 3, 0))
    places = []
    for _ in range(draw(st.integers(1, 4))):
        places.append(draw(st.sampled_from(AFTER[places[-1] if places else None])))
    try:
        check_places(places, len(sizes))
    except ValueError:
        places = [Place.SAME_NODE]
    links = [Link(a, b, 9) for rack in range(len(sizes)) for a, b in ((f"/{rack}", "core"), ("core", f"/{rack}"))]
    network = Network(nodes, links if len(sizes) > 1 else [], places=places)
    return network, draw(st.sampled_from([node.name for node in nodes])), draw(st.integers(1, 4))


@unhurried
@given(written_down(), st.randoms(use_true_random=False))
def test_a_plan_follows_what_is_written_down_and_hdfs_leaves_it_as_it_is(case, generator):
    network, writer, replicas = case
    home = network.nodes[writer].rack
    residual = Residual(network, generator)
    try:
        residual.check(writer, replicas)
    except NoPlan:
        return
    found = residual.place(writer, replicas)
    assert found is not None  # the network is idle, and every edge takes a chunk of each replica
    racks = [network.nodes[name].rack for name in found.nodes]
    for number, place in enumerate(network.places[:replicas]):
        rack = racks[number]
        match place:
            case Place.SAME_NODE:
                assert found.nodes[0] == writer if network.nodes[writer].receive else rack == home
            case Place.SAME_RACK:
                assert rack == home
                assert found.nodes[number] != writer
            case Place.OTHER_RACK:
                assert rack != home
                assert rack not in racks[:number]
            case Place.THAT_RACK:
                assert rack == racks[number - 1]
    assert len(set(found.nodes)) == replicas
    assert max(Counter(racks).values()) <= most_per_rack(replicas, len(network.data_nodes))
    assert hdfs_order(network, writer, found.nodes) == found.nodes


def test_a_writer_that_cannot_follow_the_template_has_no_plan():
    network = Network([NetworkNode("a", "/1")], places=[Place.SAME_RACK])
    with pytest.raises(NoPlan, match="cannot be placed as it is written: same rack"):
        Residual(network, random.Random(1)).check("a", 1)


def test_a_slow_disk_takes_no_more_than_it_can_and_the_wire_is_left_for_sending():
    nodes = [NetworkNode("slow", "/1", 8, 8, disk=1), NetworkNode("quick", "/1", 8, 8), NetworkNode("w", "/1", 8, 8)]
    schedule = Schedule(Network(nodes), random.Random(1))
    schedule.ask(ChunkRequest("w", 1, 9))
    grants = schedule.start()
    used = Counter(grant.pipeline.nodes[0] for grant in grants)
    assert used["slow"] <= 1
    assert used["quick"] >= 7
    for grant in grants:
        schedule.done(grant.number)
    assert {node for grant in schedule.start() for node in grant.pipeline.nodes} <= {"slow", "quick"}


def test_the_own_disk_has_a_capacity_too():
    network = Network(
        [NetworkNode("a", "/1", disk=1), NetworkNode("b", "/1")], places=[Place.SAME_NODE, Place.SAME_RACK]
    )
    residual = Residual(network, random.Random(1))
    first = residual.place("a", 2)
    assert first is not None
    assert first.nodes == ("a", "b")
    assert residual.place("a", 2) is None
    residual.give_back(first.edges)
    assert residual.place("a", 2) is not None


def test_a_sender_that_is_in_no_list_sends_as_much_as_a_usual_server():
    network = Topology({"a:1": "/1", "b:1": "/1"}, wire=5).network()
    Residual(network, random.Random(1)).add_sender("c", "/1")
    assert network.nodes["c"].send == 5
