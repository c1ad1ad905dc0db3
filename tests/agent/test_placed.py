"""What the agent tells about files whose places were planned."""

from safekeeper.agent.answers import Placed
from safekeeper.backend import PlacementCounts
from safekeeper.backends.memory import MemoryBackend


class Planning(MemoryBackend):
    def __init__(self):
        super().__init__()
        self.counts = PlacementCounts()

    def placement_counts(self):
        return self.counts


def test_every_planned_file_is_told_once():
    backend = Planning()
    placed = Placed(backend)
    backend.counts = PlacementCounts(planned=3, hits=2)
    assert placed.take() == (3, 2)
    assert placed.take() == (0, 0)
    backend.counts = PlacementCounts(planned=4, hits=3)
    assert placed.take() == (1, 1)


def test_a_backend_that_does_not_plan_has_nothing_to_tell():
    assert Placed(MemoryBackend()).take() == (0, 0)
