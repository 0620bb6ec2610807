"""Use case: do what a button in a message of Slack says.

Protocol. The channel that the button names gives the secret that has to have signed the request,
and the project in which all else is looked for: whoever can sign for one project finds nothing of
another. Then, each in a transaction of its own:

claim
    INSERT of the signature's hash; a row that is there already: replayed, and refused. Signatures
    are forgotten when their timestamps are too old to be accepted.
act
    The use case that a click on the page runs, in the name of the member.

A server that dies in between has done nothing: the member presses again, which Slack signs anew.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Final
from urllib.parse import urlsplit

import structlog
from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from starlette.background import BackgroundTask

from app.access.guard import Turns, api_router
from app.actions.orders import allow
from app.errors import PacelineError, SecretKeyError, SlackRefusedError
from app.incidents.channels.kind import JSON_HEADERS, encode
from app.incidents.channels.slack import SILENCE_HOURS, SLACK, Pressed, SlackConfig
from app.incidents.deliver import guard
from app.incidents.evaluate import acknowledge_incident, silence_incident
from app.incidents.models.tables import AlertChannel, SlackRequest
from app.incidents.secrets import unseal
from app.incidents.slack import (
    MAX_BODY_BYTES,
    REFUSED,
    WINDOW,
    Interaction,
    check_signature,
    read_interaction,
)
from app.platform.container import Container
from app.platform.identity import ActorKind, Principal, Right, clipped
from app.platform.outbound import DeliveryError, Outbound, check
from app.web.bodies import arriving
from app.web.problems import problem_of

# Slack waits for 3 s for the answer itself; what is said to the member is sent after it.
SAID_WITHIN_S: Final = 5.0
# Of a member's name, in the audit log.
NAME_CHARACTERS: Final = 60

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a button, for whoever pressed it."""

    words: str
    everybody: bool  # whether all of the channel are to read it
    # of Slack's own host; empty where it gave none
    response_url: str = ""
    refusal: PacelineError | None = None  # what the answer says instead of 200


@dataclass(frozen=True, slots=True)
class _Channel:
    project_id: int
    config: SlackConfig


def interact(container: Container, body: bytes, timestamp: str, signature: str) -> Outcome:
    """Do what a signed request says; what a member may not do is an outcome too.

    Raises
    ------
    InvalidSlackError, SlackRefusedError
    """
    asked = read_interaction(body)
    channel = _verified(container, asked, body, timestamp, signature)
    there = urlsplit(asked.response_url)[:2] == urlsplit(channel.config.url)[:2]
    response_url = asked.response_url if there else ""
    try:
        words = _act(container, channel, asked)
    except PacelineError as error:
        _log.info("button refused", code=error.stable_code, user=asked.user.id)
        return Outcome(error.message, everybody=False, response_url=response_url, refusal=error)
    return Outcome(words, everybody=True, response_url=response_url)


def tell(container: Container, outcome: Outcome) -> None:
    """Say in Slack what came of a button: the incident says it too, so once is enough."""
    if not outcome.response_url:
        return
    body = {
        "response_type": "in_channel" if outcome.everybody else "ephemeral",
        "replace_original": False,
        "text": outcome.words,
    }
    try:
        with Outbound(guard(container.settings), SAID_WITHIN_S) as outbound:
            check(outbound.post(outcome.response_url, encode(body), JSON_HEADERS))
    except DeliveryError as error:
        _log.info("slack not told", code=error.code, error=error.sentence)


def _verified(
    container: Container, asked: Interaction, body: bytes, timestamp: str, signature: str
) -> _Channel:
    """Return the channel whose secret signed the request, which is claimed then."""
    with container.everywhere().reading() as tx:
        row = tx.session.execute(
            select(
                AlertChannel.project_id,
                AlertChannel.config,
                AlertChannel.secrets,
                AlertChannel.enabled,
            ).where(AlertChannel.id == asked.channel, AlertChannel.kind == SLACK.name)
        ).one_or_none()
        now = tx.now
    # One that is not there, or has no secret, is refused as a wrong signature is.
    if row is None:
        raise SlackRefusedError(REFUSED)
    try:
        config: SlackConfig = SLACK.config.validate_python(
            row.config | unseal(container.settings, row.secrets)
        )
    except SecretKeyError:
        _log.warning("secrets of a channel cannot be read", channel=str(asked.channel))
        raise
    if config.signing_secret is None:
        raise SlackRefusedError(REFUSED)
    check_signature(
        config.signing_secret, timestamp=timestamp, signature=signature, body=body, now=now
    )
    if not row.enabled:
        raise SlackRefusedError("The channel is disabled.", code="slack.disabled")
    digest = hashlib.sha256(signature.encode()).digest()
    with container.within(row.project_id).uow() as tx:
        tx.session.execute(delete(SlackRequest).where(SlackRequest.at < tx.now - 2 * WINDOW))
        taken = tx.session.execute(
            insert(SlackRequest)
            .values(digest=digest, at=tx.now)
            .on_conflict_do_nothing()
            .returning(SlackRequest.digest)
        ).first()
        if taken is None:
            raise SlackRefusedError("The request came before.", code="slack.replayed")
    return _Channel(row.project_id, config)


def _act(container: Container, channel: _Channel, asked: Interaction) -> str:
    """Do it, and return what came of it.

    Raises
    ------
    SlackRefusedError, NotFoundError, ConflictError
    """
    user = asked.user
    if user.id not in channel.config.operators:
        raise SlackRefusedError(
            f"The member {clipped(user.id, NAME_CHARACTERS)} is no operator of this channel.",
            code="slack.unknown_user",
        )
    name = f"{clipped(user.username or user.id, NAME_CHARACTERS)} (Slack {user.id})"
    rights = frozenset({Right.READ, Right.OPERATE})
    who = Principal(ActorKind.PERSON, name, in_projects=((channel.project_id, rights),))
    here = container.within(channel.project_id, who)
    match asked.what:
        case Pressed.ACKNOWLEDGE:
            acknowledge_incident(here, asked.about)
            return f"Acknowledged by <@{user.id}>."
        case Pressed.SILENCE:
            with here.reading() as tx:
                until = tx.now + timedelta(hours=SILENCE_HOURS)
            reason = f"silenced in Slack for {SILENCE_HOURS} h"
            silence_incident(here, asked.about, until=until, reason=reason)
            return f"Silenced by <@{asked.user.id}> until {until:%H:%M} UTC."
        case Pressed.APPROVE:
            done = allow(here, asked.about)
            return f"Approved by <@{user.id}>: `{done.command.replace('`', chr(39))}`"


# ---- Buttons in messages of Slack: the request address of an app's interactivity ---------------


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
