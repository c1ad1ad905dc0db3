"""A service that counts words and loses none: it answers when the counts are durable.

    SAFEKEEPER_URL=log:///var/lib/words uvicorn word_counter:app --app-dir docs/examples --port 8000
    SAFEKEEPER_URL=log:///var/lib/words uvicorn word_counter:app --app-dir docs/examples --port 8001

    curl -d 'to be or not to be' -H 'content-type: text/plain' localhost:8000/text      {"to":2,"be":2,"or":1,"not":1}
    curl localhost:8000/words/be                                                        2

The second one waits: it opens its port when the first one is gone. Put a proxy before the two that asks the one that
answers. Kill either at any moment and start it again: every text that was answered is counted. Words come back from the
store with their first event, and leave memory when nobody has used them for ten minutes.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from safekeeper import Checkpointed, Conflict, SafeKeeper, SafekeeperError
from safekeeper.keeper.metrics import CONTENT_TYPE


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store when the service starts, and wait until the words are ours; store everything when it ends."""
    with SafeKeeper(os.environ["SAFEKEEPER_URL"]) as app.state.keeper:
        async with Checkpointed(
            app.state.keeper, "WordCounter", new=lambda: 0, owner="wait", ttl=600
        ) as app.state.words:
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/text")
async def count(text: Annotated[str, Body(media_type="text/plain")]) -> dict[str, int]:
    """Count the words of a text; how often each was seen up to now."""
    counts, tickets = {}, []
    for word in text.split():
        async with app.state.words.event(word) as element:
            element.state += 1
            counts[word] = element.state
        tickets.append(element.ticket)
    await asyncio.gather(*tickets)
    return counts


@app.get("/words/{word}")
async def seen(word: str) -> int:
    """How often a word was seen."""
    async with app.state.words.look(word) as state:
        return state or 0


@app.get("/metrics")
def metrics() -> Response:
    """What Prometheus collects."""
    text = app.state.keeper.metrics().prometheus() + app.state.words.metrics().prometheus()
    return Response(text, media_type=CONTENT_TYPE)


@app.exception_handler(SafekeeperError)
def not_stored(request: Request, error: SafekeeperError) -> JSONResponse:
    """The store did not take it: the client may try again. Whoever has lost the words ends, and may wait for them."""
    if isinstance(error, Conflict):
        os.kill(os.getpid(), signal.SIGTERM)
    return JSONResponse({"detail": str(error)}, status_code=503)
