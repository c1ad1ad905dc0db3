"""Whose a request is: queries that share an agent share its memory fairly, and the agent knows them by these names.

State has the query's id in its group, `spark/ID/...`. A file has the query's checkpoint in its path; the folders that
Spark makes in a checkpoint tell where that ends. What is neither belongs to nobody and has no share.
"""

from __future__ import annotations

import re

from safekeeper.agent.protocol import FrameKind

HEAD_BYTES = 4 + 1024
"""So much of a body's beginning is enough to tell: both kinds begin with a text."""

OF_STATE = frozenset({FrameKind.PUT, FrameKind.DELETE, FrameKind.KEYS, FrameKind.READ})
"""Requests whose body begins with a group; that of all others begins with the path of a file."""

_QUERY = re.compile(rb"spark/([^/]+)/")
_IN_CHECKPOINT = re.compile(rb"(.+?)/(?:(?:state|offsets|commits|sources)(?:/\d|$)|metadata$)")


def owner_of(kind: FrameKind, head: bytes) -> bytes:
    """Whose a request of *kind* is, by the beginning of its body, as far as that has come; nothing if nobody's."""
    text = head[4 : 4 + int.from_bytes(head[:4], "little")]
    return owner_of_group(text) if kind in OF_STATE else owner_of_path(text)


def owner_of_group(group: bytes) -> bytes:
    """The id of the query whose state is in *group*; nothing if it is no query's."""
    found = _QUERY.match(group)
    return found[1] if found else b""


def owner_of_path(path: bytes) -> bytes:
    """The checkpoint that the file at *path* is in, as far as Spark's names tell, else its folder."""
    found = _IN_CHECKPOINT.match(path)
    return found[1] if found else path.rpartition(b"/")[0]
