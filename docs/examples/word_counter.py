"""A service that counts words and loses none: it answers when the counts are durable.

    SAFEKEEPER_URL=file:///var/lib/words uvicorn word_counter:app --app-dir docs/examples

    curl -d 'to be or not to be' -H 'content-type: text/plain' localhost:8000/text      {"to":2,"be":2,"or":1,"not":1}
    curl localhost:8000/words/be                                                        2

Kill it at any moment and start it again: every text that was answered is counted. Words come back from the store with
their first event, and leave memory when nobody has used them for ten minutes.

ONE PROCESS ONLY. Never start it with `--workers 2`, or twice with the same store: each process would count in its own
memory and overwrite what the other one has stored, and answered texts would be lost without an error. For
more processes, give each of them words of its own: another group, and a proxy that always sends a word to the same one.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from safekeeper import Checkpointed, SafeKeeper, SafekeeperError
from safekeeper.keeper.metrics import CONTENT_TYPE


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store when the service starts; store everything when it ends."""
    with (
        SafeKeeper(os.environ["SAFEKEEPER_URL"]) as app.state.keeper,
        Checkpointed(app.state.keeper, "WordCounter", new=lambda: 0, ttl=600) as app.state.words,
    ):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/text")
def count(text: Annotated[str, Body(media_type="text/plain")]) -> dict[str, int]:
    """Count the words of a text; how often each was seen up to now."""
    counts, tickets = {}, []
    for word in text.split():
        with app.state.words.event(word.encode()) as element:
            element.state += 1
            counts[word] = element.state
        tickets.append(element.ticket)
    for ticket in tickets:
        ticket.result()
    return counts


@app.get("/words/{word}")
def seen(word: str) -> int:
    """How often a word was seen."""
    with app.state.words.look(word.encode()) as state:
        return state or 0


@app.get("/metrics")
def metrics() -> Response:
    """What Prometheus collects."""
    return Response(app.state.keeper.metrics().prometheus(), media_type=CONTENT_TYPE)


@app.exception_handler(SafekeeperError)
def not_stored(request: Request, error: SafekeeperError) -> JSONResponse:
    """The store did not take it: the client may try again."""
    return JSONResponse({"detail": str(error)}, status_code=503)
