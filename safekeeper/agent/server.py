"""The socket: one thread per connection, memory reserved before it is used.

A connection that sends nonsense, trickles, stalls or dies harms itself alone; the others do not notice.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing, suppress
from math import inf
from threading import Event, Lock, Thread
from typing import Self

from safekeeper.agent import protocol
from safekeeper.agent.answers import Answers, Replies, Reply, failure
from safekeeper.agent.budget import Budget, Room
from safekeeper.agent.files import code_of
from safekeeper.agent.protocol import ErrorCode, FrameHeader, FrameKind
from safekeeper.agent.shares import HEAD_BYTES, owner_of
from safekeeper.errors import SafekeeperError, Unavailable
from safekeeper.keeper import SafeKeeper
from safekeeper.wire import BadFrame, Body, write_all

log = logging.getLogger(__name__)

STALL_SECONDS = 60
"""A peer that neither sends any more of its frame nor takes a reply for this long is hung up on: it holds memory."""

LENT_SECONDS = 1
"""For how long room is held for the whole of a body that is announced; then for what has arrived of it."""

TAKE_SECONDS = 2
"""A peer may take this long for values that were read for it; then nobody waits any more for their room."""

ALIVE_SECONDS = 1
"""How often a peer that waits for its reply is told that its request gets on."""

STUCK_SECONDS = 600
"""A list or read of the backend that takes longer, while no other read gets on, is not said to get on any more. Writes
have the deadline of the keeper instead, and backends have time-outs of their own: this is for one that hangs."""

LINGER_SECONDS = 1
"""How long the agent goes on reading, and throwing away, what a peer is still sending after a bad frame."""

_CREDENTIALS = struct.Struct("@3i")  # pid, uid, gid


class AgentServer:
    """Serves the store of *keeper* on the Unix socket *path* from its making until `close`. The keeper stays open.

    At most *queue_bytes* of requests are in memory at a time, with what has arrived of those that come slowly, and as
    much again of values on their way to the JVM. Whoever waits for a reply is told every second that it will come.
    """

    def __init__(self, keeper: SafeKeeper, path: str, queue_bytes: int) -> None:
        self._answers = Answers(keeper, queue_bytes)
        self._requests = Budget(queue_bytes)
        self._path = path
        self._listener = _listen(path)
        self._lock = Lock()
        self._conversations: dict[_Conversation, Thread] = {}
        self._stopping = False
        self._ended = Event()
        self._accepting = Thread(target=self._accept, name="accept", daemon=True)
        self._accepting.start()
        Thread(target=self._look_after, name="look-after", daemon=True).start()

    def close(self, grace_seconds: float = 30) -> None:
        """Take no more requests, answer those that were read in full, and remove the socket.

        The folder of the socket goes too if nothing else is in it. A write that takes longer than *grace_seconds* is
        left to itself: it was not acknowledged.
        """
        with self._lock:
            self._stopping = True
            conversations = list(self._conversations.items())
        with suppress(OSError):
            os.unlink(self._path)
            os.rmdir(os.path.dirname(self._path))  # it was made for the socket; where more is in it, it stays
        self._listener.shutdown(socket.SHUT_RDWR)
        for conversation, _ in conversations:
            conversation.take_no_more()
        deadline = time.monotonic() + grace_seconds
        for thread in [self._accepting, *(thread for _, thread in conversations)]:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._ended.set()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._listener.accept()
                self._start(connection)
            except (OSError, RuntimeError) as error:
                if not self._stopping:
                    log.warning("cannot accept a connection: %s", error)
                    time.sleep(0.1)  # too many files or threads, most likely: let some end

    def _start(self, connection: socket.socket) -> None:
        conversation = _Conversation(connection, self._requests, self._answers)
        thread = Thread(target=self._serve, args=(conversation,), name="connection", daemon=True)
        with self._lock:
            if self._stopping or not _is_same_user(connection):
                connection.close()
                return
            thread.start()
            self._conversations[conversation] = thread

    def _look_after(self) -> None:
        while not self._ended.wait(ALIVE_SECONDS):
            self._answers.pass_over(TAKE_SECONDS)
            with self._lock:
                conversations = list(self._conversations)
            for conversation in conversations:
                conversation.say_alive()

    def _serve(self, conversation: _Conversation) -> None:
        try:
            with closing(conversation):
                conversation.run()
        except EOFError:
            pass
        except OSError as error:
            log.info("a connection was lost: %s", error)
        except Exception:
            log.exception("a connection ends by a defect of the agent")
        finally:
            with self._lock:
                del self._conversations[conversation]


class _Conversation:
    """One connection: reads a request, answers it, reads the next."""

    def __init__(self, connection: socket.socket, requests: Budget, answers: Answers) -> None:
        self._socket = connection
        self._requests = requests
        self._answers = answers
        self._sending = Lock()  # held while a frame is sent, and while the next three change
        self._open = True
        self._under_way: FrameHeader | None = None  # the request that is to be answered
        self._since = inf  # when the backend was last asked for something, or answered
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        _set_timeout(connection, socket.SO_RCVTIMEO, LENT_SECONDS)
        _set_timeout(connection, socket.SO_SNDTIMEO, STALL_SECONDS)

    def run(self) -> None:
        """Answer until the peer sends what is no frame; `EOFError` when it hangs up, `OSError` when it is lost."""
        try:
            while True:
                self._poll.poll()  # between requests a peer may be silent for as long as it likes
                header = FrameHeader.decode(self._receive(protocol.HEADER.size))
                with self._sending:
                    self._under_way, self._since = header, inf
                with self._requests.room(header.length, self._owner(header)) as room:
                    self._answer(header, room)
        except BadFrame as problem:
            log.warning("a connection is closed: %s", problem)
            self._send(0, (FrameKind.ERROR, protocol.error(ErrorCode.BAD_FRAME, str(problem))))
            self._linger()

    def _owner(self, header: FrameHeader) -> bytes:
        """Whose the request is, as what has come of its body tells, so that queries share the room."""
        try:
            head = self._socket.recv(min(HEAD_BYTES, header.length), socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        return owner_of(header.kind, head)

    def take_no_more(self) -> None:
        """Let the request that was read in full be the last one."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Hang up."""
        with self._sending:
            self._open = False
            self._socket.close()

    def say_alive(self) -> None:
        """Tell a peer that waits that its request gets on, if it does. Waits for nothing."""
        if not self._sending.acquire(blocking=False):
            return  # a reply is being sent, which says more
        try:
            if self._open and self._under_way is not None and not self._is_stuck():
                frame = b"".join(protocol.encode(FrameKind.ALIVE, self._under_way.request))
                # So short a frame goes whole or not at all; not, if the peer has left many of them unread.
                with suppress(OSError):
                    self._socket.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        finally:
            self._sending.release()

    def _is_stuck(self) -> bool:
        assert self._under_way is not None
        if self._under_way.kind not in protocol.READING:
            return False
        return time.monotonic() - max(self._since, self._answers.moved) > STUCK_SECONDS

    def _answer(self, header: FrameHeader, room: Room) -> None:
        body = self._receive_body(header, room)
        self._since = time.monotonic()
        with closing(self._answers.to(header.kind, body)) as replies:
            del body
            while self._send_next(header.request, replies):
                self._since = time.monotonic()

    def _send_next(self, request: int, replies: Replies) -> bool:
        """Send the next of *replies*, if there is one. Nothing refers to it when this returns: its room is free."""
        try:
            reply = next(replies, None)
        except BadFrame:
            raise
        except Exception as error:
            if not isinstance(error, SafekeeperError) and code_of(error) is ErrorCode.INTERNAL:
                log.exception("request %d failed by a defect of the backend", request)
            reply = failure(error)  # the last one: a generator that raised has ended
        if reply is not None:
            self._send(request, reply)
        return reply is not None

    def _receive_body(self, header: FrameHeader, room: Room) -> Body:
        """The body, with room for all of it; if it comes slowly, with room for what has come until it is all here."""
        data = self._receive(header.length, lambda arrived: room.resize(arrived, slow=True))
        room.resize(header.length)
        header.check(data)
        return Body(data)

    def _receive(self, size: int, on_wait: Callable[[int], object] = lambda arrived: None) -> bytes:
        """The next *size* bytes. *on_wait* is told how many are here each time that they are awaited further."""
        data = self._receive_some(size) if size else b""
        if len(data) == size:
            return data
        rest, heard = bytearray(data), time.monotonic()
        while len(rest) < size:
            on_wait(len(rest))
            if more := self._receive_some(size - len(rest)):
                rest += more
                heard = time.monotonic()
            elif time.monotonic() - heard > STALL_SECONDS:
                raise TimeoutError(f"the peer stopped in the middle of a frame for {STALL_SECONDS} s")
        return bytes(rest)

    def _receive_some(self, size: int) -> bytes:
        """What of *size* bytes comes within `LENT_SECONDS`, perhaps nothing. Raise `EOFError` at the end."""
        try:
            data = self._socket.recv(size, socket.MSG_WAITALL)
        except BlockingIOError:
            return b""
        if not data:
            raise EOFError
        return data

    def _send(self, request: int, reply: Reply) -> None:
        kind, pieces = reply
        with self._sending:
            write_all(self._socket.fileno(), protocol.encode(kind, request, pieces))
            if kind in protocol.LAST_REPLIES:
                self._under_way = None

    def _linger(self) -> None:
        """Let a peer that is still sending finish, or it would see a broken pipe instead of the message."""
        self._socket.shutdown(socket.SHUT_WR)
        _set_timeout(self._socket, socket.SO_RCVTIMEO, LINGER_SECONDS)
        scratch = bytearray(1 << 16)
        left = protocol.MAX_BODY_BYTES
        while left > 0 and (size := self._socket.recv_into(scratch)):
            left -= size


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listener, path)
        os.chmod(path, 0o600)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def _bind(listener: socket.socket, path: str) -> None:
    """Bind to *path*, also where an agent that was killed has left its socket behind."""
    try:
        listener.bind(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or _is_served(path):
            raise
        os.unlink(path)
        listener.bind(path)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) != errno.ECONNREFUSED


def _is_same_user(connection: socket.socket) -> bool:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    if uid != os.geteuid():
        log.warning("a connection of user %d is refused", uid)
    return bool(uid == os.geteuid())


def _set_timeout(connection: socket.socket, option: int, seconds: int) -> None:
    """Bound every blocking call of that kind by *seconds*: in the kernel, so that MSG_WAITALL still works."""
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))
