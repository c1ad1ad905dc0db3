"""How a LangGraph thread lies in a store: its ids, its values, and what makes it safe. Version 1.

    group langgraph.thread.THREAD   mark                      the token of the thread, 16 hex digits
                                    kept                      what the last prune found whole: token, newline, keys
                                    c/NS/ID                   a checkpoint: everything but its parts
                                    w/NS/ID/TASK/SLOT         pending writes of a task; SLOT 0, 1, ... are created and
                                                              stay, -1 to -4 are special writes and are replaced
    group langgraph.parts.THREAD    TOKEN/NAME                a part of a channel's value; NAME has 32 hex digits
    group langgraph                 names+CIPHER              the key of the names, where values are encrypted

THREAD, NS, ID and TASK are percent-encoded UTF-8, dots of THREAD too. A thread whose name would be over 200 bytes is
`#` and the BLAKE2b of it, 40 hex digits. What a thread has is in its two groups, so nothing of it is left when they are
empty.

A value is `1`, the length of the cipher's name, the name, and the body as the cipher gives it; no name: as it is. The
body is msgpack:

    checkpoint   [thread, ns, id, parent, [type, bytes] of the checkpoint without its values,
                  [type, bytes] of its metadata, token, {channel: value}]
    writes       [task, path, token, [[index, channel, value], ...]]
    value        [kind, names of parts, elements after them]
    elements     [type, sizes, bytes of all of them], with a list of types where they differ

Of a part the body is the elements, too, with their bytes behind: the length of what comes first in 4 bytes, little
endian; msgpack of [type, sizes]; the bytes.

Type and bytes are what the saver's serializer makes of an element. Kind `v` is one element, `l` a list, `d` a dict of
pairs; `s` before it is a snapshot of a delta channel. Every name in a checkpoint or in writes has the token that stands
in it.

**Parts.** A list is cut where its content says so (`values.py`), so that any process cuts it in the same places, and a
list that has grown or lost some elements shares all other parts with the one before. What comes after the last cut
stands in the checkpoint itself. Reading a state is: list the thread's keys, read a checkpoint and its writes, read its
parts.

**The rules.** They hold on every backend whose ids are atomic; batches need not be.

1. Parts are written before the checkpoint that names them, or in one atomic batch with it.
2. The token is random and never used twice. Whoever deletes parts first replaces it, and lists the thread *after* that.
   It never deletes parts that have its own token, nor does it delete anything if the token is another one by the time
   that it has listed everything: then it begins again.
3. Whoever puts a checkpoint names only parts with one token, and reads the mark after the checkpoint was written. If it
   is another token, it writes all parts anew under that one, and the checkpoint again.

So a part may be used again without looking whether it is there: as long as the mark has its token, nobody has begun to
delete; and who begins later lists a checkpoint that is there already. For the same reason a reader may take a part from
memory (`recent.py`) if the mark, read after the checkpoint, has its token.

**The attacks**, each with its test in `tests/integrations/langgraph/test_attacks.py`:

- *Prune decides that a part is garbage, a put uses it again, prune deletes it.* The put reads another token (rule 3)
  and writes the part anew under a name that this prune does not delete.
- *The put is killed before it writes anew.* A checkpoint is left that nobody was told of, and parts of it are gone. It
  has neither the token of the mark nor that of `kept`, and is not among what was whole: it is taken as absent, by
  readers and by the next prune, which does not take it for the latest.
- *A reader has parts in memory that a prune has deleted.* The mark is another one by then: it asks the store.
- *A part is gone for another reason.* That is Corruption, and said by everybody who does not have it in memory.
- *Two prunes at once*, of which one deletes what the other one keeps: the one whose token was replaced begins again;
  the lists of the other one were complete before that. Neither has parts in its list that have a newer token.
- *Killed while it prunes.* Checkpoints go before their parts. What is left is garbage, and the next prune's.
- *Two processes begin a thread*: both write a mark, one of them finds another one than its own, and writes anew.
- *A thread is deleted while it is written*: the put finds no mark or another one, and writes anew: it came after.
- *A put is killed*: parts without a checkpoint, which the next prune removes.
- *Two write the same task's results*: `create` decides which are the first (`SupportsCreate`). A backend that cannot
  create has this only among the threads of one process.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgpack

from safekeeper.backend import CheckpointId
from safekeeper.errors import BadState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from langgraph.checkpoint.serde.base import CipherProtocol

NAMES = "langgraph"
_THREAD = "langgraph.thread."
_PARTS = "langgraph.parts."
_MOST = 200
_VERSION = b"\x01"

MARK = b"mark"
KEPT = b"kept"


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return quote(text, safe=":|")


def _thread_name(thread: str) -> str:
    name = _quoted(thread).replace(".", "%2E")
    if 0 < len(name) <= _MOST:
        return name
    return f"#{hashlib.blake2b(thread.encode(), digest_size=20).hexdigest()}"


def thread_group(thread: str) -> str:
    """The group of a thread's checkpoints and writes."""
    return _THREAD + _thread_name(thread)


def parts_group(group: str) -> str:
    """The group of the parts of the thread in *group*."""
    return _PARTS + group.removeprefix(_THREAD)


def thread_groups(groups: Iterable[str]) -> list[str]:
    """Those of *groups* that are threads, each once."""
    return sorted({group for group in groups if group.startswith(_THREAD)})


def checkpoint_key(ns: str, id: str) -> bytes:
    """The key of a checkpoint."""
    return f"c/{_quoted(ns)}/{_quoted(id)}".encode()


def writes_prefix(ns: str, id: str) -> bytes:
    """How the keys of a checkpoint's writes begin."""
    return f"w/{_quoted(ns)}/{_quoted(id)}/".encode()


def writes_key(ns: str, id: str, task: str, slot: int) -> bytes:
    """The key of some writes of a task."""
    return writes_prefix(ns, id) + f"{_quoted(task)}/{slot}".encode()


def writes_among(keys: Sequence[bytes], ns: str, id: str) -> list[bytes]:
    """Those of *keys* that are writes of a checkpoint."""
    prefix = writes_prefix(ns, id)
    if prefix not in b"\n".join(keys):  # most often there are none, and this is quicker
        return []
    return [key for key in keys if key.startswith(prefix)]


def part_key(token: str, name: bytes) -> bytes:
    """The key of a part."""
    return f"{token}/{name.hex()}".encode()


def split_part_key(key: bytes) -> tuple[str, bytes]:
    """Token and name of a part."""
    token, _, name = key.decode().partition("/")
    return token, bytes.fromhex(name)


@dataclass(slots=True)
class ThreadKeys:
    """What a listing of a thread's group shows."""

    checkpoints: list[tuple[str, str]]
    """Namespace and id, the newest first."""
    writes: dict[tuple[str, str], list[bytes]]
    """The keys of the writes of each checkpoint; of those too that are not there."""

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> ThreadKeys:
        """Tell *keys* apart."""
        checkpoints, writes = set(), dict[tuple[str, str], list[bytes]]()
        for key in set(keys):
            kind, *fields = key.split(b"/")
            if kind == b"c" and len(fields) == 2:
                checkpoints.add((_plain(fields[0]), _plain(fields[1])))
            elif kind == b"w" and len(fields) == 4:
                writes.setdefault((_plain(fields[0]), _plain(fields[1])), []).append(key)
        return cls(sorted(checkpoints, key=lambda both: (both[1], both[0]), reverse=True), writes)


def ids_of(keys: Iterable[bytes], ns: str) -> Iterator[str]:
    """The ids of a namespace's checkpoints, the newest first."""
    prefix = checkpoint_key(ns, "")
    at = len(prefix)
    found = [key for key in keys if key.startswith(prefix)]
    if b"%" in b"".join(found):  # escaped, they are in another order
        yield from sorted({_plain(key[at:]) for key in found}, reverse=True)
    elif found:
        yield (newest := max(found))[at:].decode()  # most often nobody asks for more
        yield from (key[at:].decode() for key in sorted(set(found) - {newest}, reverse=True))


def _plain(field: bytes) -> str:
    text = field.decode()
    return unquote(text) if "%" in text else text


def pack(body: Any) -> bytes:
    """A body as bytes."""
    packed: bytes = msgpack.packb(body, use_bin_type=True)
    return packed


def unpack(body: bytes | memoryview) -> Any:
    """What was packed."""
    return msgpack.unpackb(body, raw=False, strict_map_key=False)


def pack_part(elements: list[Any]) -> bytes:
    """The body of a part."""
    head = pack(elements[:2])
    return b"".join((len(head).to_bytes(4, "little"), head, elements[2]))


def unpack_part(body: bytes | memoryview) -> list[Any]:
    """The elements of a part; their bytes are not copied."""
    view = memoryview(body)
    at = 4 + int.from_bytes(view[:4], "little")
    return [*unpack(view[4:at]), view[at:]]


def seal(cipher: CipherProtocol | None, body: bytes) -> bytes:
    """The value of a body."""
    if cipher is None:
        return _VERSION + b"\x00" + body
    name, secret = cipher.encrypt(body)
    return _VERSION + bytes([len(name.encode())]) + name.encode() + secret


def unseal(cipher: CipherProtocol | None, id: CheckpointId, value: bytes) -> bytes | memoryview:
    """The body of a value that was read under *id*."""
    if value[:1] != _VERSION:
        raise BadState(f"{id} has a layout that this version of safekeeper does not know: upgrade safekeeper")
    at = 2 + value[1]
    if at == 2:
        return memoryview(value)[2:]
    name = value[2:at].decode()
    if cipher is None:
        raise BadState(f"{id} is encrypted ({name}): give the saver the EncryptedSerializer that wrote it")
    return cipher.decrypt(name, value[at:])
