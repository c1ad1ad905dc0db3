"""Which servers the replicas of a chunk may go to: the usual rule, or what an administrator has written down.

**The usual rule.** Replica 1 in the writer's rack, replica 2 in another one, the rest in the rack of replica 2 as long
as HDFS allows, then in one more rack; all on different servers and none on the writer's own disk. Where a small
cluster cannot do this, more replicas stay in the writer's rack, and at last the own disk is used.

**Written down** (`Place`), a word for each replica; those beyond the last word go by the usual rule for what is left.
It is followed or there is no plan. HDFS orders a pipeline by distance, the nearest to the writer first, and replaces in
silence what is too many for a rack: so servers of one rack must be neighbours, the writer's rack first, and words that
HDFS would not honour are refused.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safekeeper.errors import SafekeeperError

if TYPE_CHECKING:
    from safekeeper.backends.hdfs.peace.network import Network, NetworkNode


class NoPlan(SafekeeperError):
    """The network cannot hold so many replicas, however idle it is. HDFS decides by itself what to do then."""


class Place(enum.StrEnum):
    """Where one replica has to be."""

    SAME_NODE = "same node"
    """On the writer's own DataNode; in its rack, if it is not one."""
    SAME_RACK = "same rack"
    """On another server of the writer's rack."""
    OTHER_RACK = "other rack"
    """In a rack that has no replica yet and is not the writer's."""
    THAT_RACK = "that rack"
    """In the rack of the replica before it."""


AFTER: dict[Place | None, tuple[Place, ...]] = {
    None: (Place.SAME_NODE, Place.SAME_RACK, Place.OTHER_RACK),
    Place.SAME_NODE: (Place.SAME_RACK, Place.OTHER_RACK),
    Place.SAME_RACK: (Place.SAME_RACK, Place.OTHER_RACK),
    Place.OTHER_RACK: (Place.THAT_RACK, Place.OTHER_RACK),
    Place.THAT_RACK: (Place.THAT_RACK, Place.OTHER_RACK),
}
"""What may follow each word: any other order HDFS would change."""


def replicas_per_rack(replicas: int, racks: int) -> int:
    """How many replicas of a block HDFS puts on one rack at most; more favoured nodes would be replaced in silence."""
    if racks < 2 or replicas < 2:
        return replicas
    limit = (replicas - 1) // racks + 2
    return limit - 1 if limit == replicas else limit


def check_places(places: Sequence[Place], racks: int) -> None:
    """Raise `ValueError` unless HDFS honours *places* in a cluster of so many racks."""
    before: Place | None = None
    for number, place in enumerate(places, start=1):
        if place not in AFTER[before]:
            after = f"after {before.value!r}" if before else "at first"
            can = ", ".join(repr(one.value) for one in AFTER[before])
            raise ValueError(f"replica {number} is {place.value!r}, {after} HDFS honours only {can}")
        before = place
    most, groups = replicas_per_rack(len(places), racks), _groups(places)
    if max(groups) > most:
        raise ValueError(f"{max(groups)} of {len(places)} replicas are in one rack: with {racks} HDFS allows {most}")
    if len(groups) > max(racks, 1):
        raise ValueError(f"the replicas are in {len(groups)} racks: there are {racks}")


def _groups(places: Sequence[Place]) -> list[int]:
    """How many replicas are in each rack, the writer's first."""
    groups = [0]
    for place in places:
        if place is Place.OTHER_RACK:
            groups.append(1)
        else:
            groups[-1] += 1
    return groups


@dataclass(frozen=True, slots=True)
class Template:
    """Which racks the replicas of one writer's chunks may go to."""

    home: str
    """The writer's rack."""
    at_home: int
    """How many replicas stay there, the first ones."""
    own_disk: bool
    """Whether the first of these is the writer's own DataNode."""
    most: int
    """How many replicas a rack takes at most."""
    groups: tuple[int, ...] = ()
    """How many go to each further rack, where that was written down."""

    @classmethod
    def of(cls, network: Network, writer: NetworkNode, replicas: int) -> Template:
        """The template for chunks of *writer*. Raise `NoPlan` when *network* is too small."""
        if network.places:
            return cls._written_down(network, writer, replicas)
        most = replicas_per_rack(replicas, len(network.data_nodes))
        elsewhere = sum(min(most, count) for rack, count in network.data_nodes.items() if rack != writer.rack)
        is_data_node = writer.receive > 0
        for own_disk in (False, True) if is_data_node else (False,):
            others = network.data_nodes[writer.rack] - (is_data_node and not own_disk)
            room = min(most, others)
            at_home = min(room, max(1, replicas - elsewhere))
            if at_home + elsewhere >= replicas:
                return cls(writer.rack, at_home, own_disk, most)
        raise NoPlan(f"{replicas} replicas of a chunk of {writer.name} have no room on {len(network.nodes)} servers")

    @classmethod
    def _written_down(cls, network: Network, writer: NetworkNode, replicas: int) -> Template:
        most = replicas_per_rack(replicas, len(network.data_nodes))
        places = list(network.places[:replicas])
        while len(places) < replicas:
            last = _groups(places)[-1]
            is_away = Place.OTHER_RACK in places
            places.append(Place.THAT_RACK if is_away and last < most else Place.OTHER_RACK)
        own_disk = places[0] is Place.SAME_NODE and writer.receive > 0
        at_home, *groups = _groups(places)
        others = network.data_nodes[writer.rack] - (writer.receive > 0)
        sizes = [count for rack, count in network.data_nodes.items() if rack != writer.rack]
        if at_home - own_disk > others or max(at_home, *groups, 0) > most or not _match(groups, sizes):
            words = ", ".join(network.places)
            raise NoPlan(f"{replicas} replicas of a chunk of {writer.name} cannot be placed as it is written: {words}")
        return cls(writer.rack, at_home, own_disk, most, tuple(groups))

    def allows(self, rack: str, so_far: list[str], racks: dict[str, int]) -> bool:
        """Whether the replica after those on the racks *so_far* may go to *rack*; *racks* has the size of each."""
        if len(so_far) < self.at_home:
            return rack == self.home
        if self.groups:
            return self._follows(rack, so_far, racks)
        last = so_far[-1] if so_far else self.home
        if last != self.home and so_far.count(last) < min(self.most, racks[last]):
            return rack == last
        return rack != self.home and rack not in so_far

    def _follows(self, rack: str, so_far: list[str], racks: dict[str, int]) -> bool:
        left = list(self.groups)
        for number, used in enumerate(dict.fromkeys(so_far[self.at_home :])):
            if so_far.count(used) < self.groups[number]:
                return rack == used
            left.pop(0)
        if rack == self.home or rack in so_far or racks.get(rack, 0) < left[0]:
            return False
        rest = [size for name, size in racks.items() if name not in (self.home, rack, *so_far)]
        return len(left) == 1 or _match(left[1:], rest)


def _match(groups: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each of *groups* finds a rack of its own that is large enough."""
    most = sorted(sizes, reverse=True)
    return len(groups) <= len(most) and all(
        group <= size for group, size in zip(sorted(groups, reverse=True), most, strict=False)
    )
