"""Ids that stores get wrong: the limits, every byte, and names that mean something to a file system or a server."""

from __future__ import annotations

from safekeeper.backend import MAX_GROUP_BYTES, MAX_KEY_BYTES, CheckpointId

AWKWARD_KEYS: dict[str, bytes] = {
    "empty": b"",
    "NUL": b"\0",
    "two NULs": b"\0\0",
    "every byte value": bytes(range(256)),
    "every byte value backwards": bytes(range(255, -1, -1)),
    "the longest": b"k" * MAX_KEY_BYTES,
    "the longest but for the last byte": b"k" * (MAX_KEY_BYTES - 1) + b"j",
    "the longest, all bytes escaped": b"\xff" * MAX_KEY_BYTES,
    "just over a file name": b"n" * 256,
    "just over a file name, other end": b"n" * 255 + b"m",
    "just over LMDB's limit": b"l" * 512,
    "dot": b".",
    "dot dot": b"..",
    "a way out": b"../../../etc/passwd",
    "an absolute path": b"/etc/passwd",
    "a folder": b"folder/",
    "a path": b"folder/file",
    "a drive": b"C:\\file",
    "a temporary file": b".tmp",
    "a checkpoint file": b"a.ckpt",
    "plain": b"a",
    "capital": b"A",
    "trailing space": b"a ",
    "trailing NUL": b"a\0",
    "trailing dot": b"a.",
    "trailing newline": b"a\n",
    "leading space": b" a",
    "an escape": b"%61",
    "an escape of an escape": b"%2561",
    "a plus": b"a+a",
    "separators": b"a:b;c,d|e=f&g?h#i",
    "a separator that is a NUL": b"a\0b",
    "wild cards": b"*?[a-z]",
    "a hash tag": b"{a}",
    "quotes": b"'\"`; DROP TABLE checkpoints; --",
    "composed": "\u00e9".encode(),
    "decomposed": "e\u0301".encode(),
    "not UTF-8": b"\xff\xfe",
    "half a surrogate": b"\xed\xa0\x80",
}
"""Keys that all differ, by what is awkward about them."""

AWKWARD_GROUPS: dict[str, str] = {
    "plain": "a",
    "capital": "A",
    "one of two that run together": "a/b",
    "the longest": "g" * MAX_GROUP_BYTES,
    "the longest but for the last byte": "g" * (MAX_GROUP_BYTES - 1) + "h",
    "the longest, of several bytes each": "\u20ac" * (MAX_GROUP_BYTES // 3),
    "beyond the basic plane": "\U0001f512",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "dot": ".",
    "dot dot": "..",
    "a way out": "../../outside",
    "an absolute path": "/etc",
    "a temporary folder": ".tmp",
    "a space": " ",
    "trailing space": "a ",
    "an escape": "%61",
    "an escape of an escape": "%2561",
    "separators": "a:b;c,d|e=f&g?h#i",
    "wild cards": "*?[a-z]",
    "a hash tag": "{a}",
    "quotes": "'\"`; DROP TABLE checkpoints; --",
    "a format character": "\u200b",
}
"""Groups that all differ, by what is awkward about them."""

AWKWARD_IDS: dict[str, CheckpointId] = {
    **{f"key: {name}": CheckpointId("a", key) for name, key in AWKWARD_KEYS.items()},
    **{f"group: {name}": CheckpointId(group, b"key") for name, group in AWKWARD_GROUPS.items()},
}
"""Ids that all differ: every awkward key in a plain group, a plain key in every awkward group."""
