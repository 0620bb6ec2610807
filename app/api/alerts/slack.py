"""Buttons in messages of Slack: the request address of an app's interactivity."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from starlette.background import BackgroundTask

from app.api.frame.bodies import arriving
from app.api.frame.problems import problem_of
from app.api.frame.routers import api_router
from app.auth.turns import Turns
from app.services.slack.interact import interact, tell
from app.services.slack.signed import MAX_BODY_BYTES

if TYPE_CHECKING:
    from app.services.container import Container

# Whoever sends is known by the signature only: buttons hold no threads of other routes.
AT_ONCE: Final = 4
WAITING: Final = 64


def router(container: Container) -> APIRouter:
    """Return the route; the channel that a request names says in which project it is."""
    routes = api_router("alerts", "/api/v1")
    turns = Turns(AT_ONCE, WAITING)

    @routes.post("/slack/interactions", summary="Buttons in messages of Slack")
    async def post_interaction(
        request: Request,
        timestamp: Annotated[str, Header(alias="X-Slack-Request-Timestamp")] = "",
        signature: Annotated[str, Header(alias="X-Slack-Signature")] = "",
    ) -> Response:
        """Slack sends it: a form with `payload`, signed with the secret of the app.

        It is answered within three seconds; what came of it is said in Slack afterwards.
        """
        arriving(request).limit = MAX_BODY_BYTES
        body = await request.body()
        outcome = await turns.run(partial(interact, container, body, timestamp, signature))
        # Slack shows that something was refused; the text that follows says why.
        refused = outcome.refusal
        answer = Response() if refused is None else problem_of(refused)
        answer.background = BackgroundTask(tell, container, outcome)
        return answer

    return routes
