"""Journals: the blocks of one operator, in order, in any backend, written by one owner at a time.

Read in this order: `block` (its bytes), `chain` (which blocks count), `extent` and `image` (what they say together),
all four without I/O; then `reading`, `journal` and `follow`. `docs/journal.md` has the rules and the attacks on them.
"""

from safekeeper.journal.block import Block, Moment, Outputs
from safekeeper.journal.follow import Follow
from safekeeper.journal.image import Image
from safekeeper.journal.journal import Journal

__all__ = ["Block", "Follow", "Image", "Journal", "Moment", "Outputs"]
