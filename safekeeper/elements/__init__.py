"""A service's elements by key: kept in memory, checkpointed when a policy says so, loaded when they are asked for."""

from safekeeper.elements.checkpointed import Checkpointed
from safekeeper.elements.element import Element
from safekeeper.elements.metrics import ElementMetrics

__all__ = ["Checkpointed", "Element", "ElementMetrics"]
