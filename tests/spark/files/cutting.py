"""An agent as it is, but that every other time it hangs up once a file is written, and the JVM hears nothing of it."""

from __future__ import annotations

import itertools
import sys

from safekeeper.agent import __main__ as agent
from safekeeper.agent import server
from safekeeper.agent.protocol import LAST_REPLIES, FrameKind

conversation = server._Conversation
send = conversation._send
count = itertools.count()


def cut_or_send(self, request, reply):
    under_way = self._under_way
    written = under_way is not None and under_way.kind is FrameKind.WRITE_FILE and reply[0] in LAST_REPLIES
    if written and next(count) % 2 == 0:
        raise EOFError
    send(self, request, reply)


conversation._send = cut_or_send
sys.exit(agent.main())
