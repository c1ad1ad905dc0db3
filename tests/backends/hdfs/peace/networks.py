"""Networks to plan on."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st

from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode

unhurried = settings(deadline=None)
"""For properties: how long an example takes says nothing on a machine that others use, too."""


def two_racks(per_rack=4, wire=2, link=4):
    """A network of two racks with addresses as the tests read them: `rack.server`."""
    nodes = [NetworkNode(f"{rack}.{n}", f"/{rack}", wire, wire) for rack in (1, 2) for n in range(1, per_rack + 1)]
    return Network(nodes, [Link("/1", "/2", link), Link("/2", "/1", link)])


@st.composite
def networks(draw):
    """One to four racks of one to five DataNodes, some with a server that only sends, joined in a star or a ring."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    capacity = st.integers(1, 3)
    nodes = [
        NetworkNode(f"{rack}.{n}", f"/{rack}", draw(capacity), draw(capacity))
        for rack, size in enumerate(sizes)
        for n in range(size)
    ]
    nodes += [
        NetworkNode(f"{rack}.sender", f"/{rack}", draw(capacity), 0)
        for rack in range(len(sizes))
        if draw(st.booleans())
    ]
    racks = [f"/{rack}" for rack in range(len(sizes))]
    if len(racks) == 1:
        pairs = []
    elif draw(st.booleans()):
        pairs = [(rack, "/core") for rack in racks]
    else:
        pairs = list(zip(racks, racks[1:] + racks[:1], strict=True))
    links = {}
    for a, b in pairs:
        links[a, b] = Link(a, b, draw(capacity))
        links[b, a] = Link(b, a, draw(capacity))
    return Network(nodes, links.values())


def hdfs_order(network, writer, pipeline):
    """The pipeline that the NameNode makes of these nodes: always the nearest to the last, ties in the order given."""
    left = list(pipeline)
    at = writer if network.nodes[writer].receive else left[0]
    order = []
    while left:
        at = min(left, key=lambda name: _distance(network, at, name))
        left.remove(at)
        order.append(at)
    return tuple(order)


def _distance(network, a, b):
    return 0 if a == b else 2 if network.nodes[a].rack == network.nodes[b].rack else 4


def check_pipeline(network, writer, pipeline):
    """That the edges of a pipeline lead from the writer through its nodes, and the nodes are where HDFS takes them."""
    nodes = pipeline.nodes
    assert len(set(nodes)) == len(nodes)
    assert hdfs_order(network, writer, nodes) == nodes
    racks = Counter(network.nodes[name].rack for name in nodes)
    assert max(racks.values()) <= most_per_rack(len(nodes), len(network.data_nodes))
    at, hops = writer, list(nodes[1:] if nodes[0] == writer else nodes)
    for edge in pipeline.edges:
        source, target = network.edge_names[edge]
        assert source == at
        at = target
        if target in network.nodes:
            assert target == hops.pop(0)
    assert not hops


def most_per_rack(replicas, racks):
    """BlockPlacementPolicyDefault's limit, as its source has it."""
    if racks <= 1 or replicas <= 1:
        return replicas
    most = (replicas - 1) // racks + 2
    return most - 1 if most == replicas else most


def used(pipelines):
    """How many chunks go over each edge."""
    return Counter(edge for pipeline in pipelines for edge in pipeline.edges)
