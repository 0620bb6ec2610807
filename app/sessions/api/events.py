"""Server-sent events: changes of the states of all sessions, or of one session.

Each event is `state` with data ``{"session": id, "state": state}``. Its id is the time of the
change: a browser that reconnects sends it to receive the changes it missed.

No postponed annotations in this module: those of the endpoints name local functions.
"""

import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app.access.guard import RequestContainer, api_router
from app.sessions.api.live import LONGEST_TRANSACTION_S, LiveStates, Stream, recent, states
from app.sessions.read import no_session

# Limit of event ids, which are times in µs: the largest integer that is exact in JavaScript, in the
# year 2255.
MAX_EVENT_ID: Final = 2**53 - 1

LastEventId = Annotated[int | None, Header(ge=0, le=MAX_EVENT_ID)]


def router(live: LiveStates) -> APIRouter:
    """Return the routes of the event streams."""
    routes = api_router("events", "/api/v1")

    async def fleet_stream(
        container: RequestContainer, last_event_id: LastEventId = None
    ) -> AsyncIterator[Stream]:
        # Subscribe before reading the states: otherwise changes between the two steps would be
        # lost.
        with live.stream(container.project_id) as stream:
            margin_us = int(LONGEST_TRANSACTION_S * 1e6)
            after_us = None if last_event_id is None else max(0, last_event_id - margin_us)
            stream.push(await recent(container, LONGEST_TRANSACTION_S, after_us))
            yield stream

    async def session_stream(
        container: RequestContainer, session: uuid.UUID
    ) -> AsyncIterator[Stream]:
        with live.stream(container.project_id, session) as stream:
            current = await states(container, [session])
            if not current:
                raise no_session(session)
            stream.push(current)
            yield stream

    @routes.get(
        "/events",
        response_class=EventSourceResponse,
        summary="Stream of all sessions' states",
    )
    async def fleet_events(
        stream: Annotated[Stream, Depends(fleet_stream)],
    ) -> AsyncIterator[ServerSentEvent]:
        async for event in _events(stream):
            yield event

    @routes.get(
        "/sessions/{session}/events",
        response_class=EventSourceResponse,
        summary="Stream of one session's states",
    )
    async def session_events(
        stream: Annotated[Stream, Depends(session_stream)],
    ) -> AsyncIterator[ServerSentEvent]:
        async for event in _events(stream):
            yield event

    return routes


async def _events(stream: Stream) -> AsyncIterator[ServerSentEvent]:
    # Sent before any change, so that a new event source knows that it is connected.
    yield ServerSentEvent(comment="open")
    async for state in stream:
        yield ServerSentEvent(
            event="state",
            id=str(state.changed_us),
            data={"session": str(state.session), "state": state.state},
        )
