"""A service's elements by key: kept in memory, checkpointed when a policy says so, loaded when they are asked for."""

from safekeeper.elements.checkpointed import Checkpointed
from safekeeper.elements.element import Element

__all__ = ["Checkpointed", "Element"]
