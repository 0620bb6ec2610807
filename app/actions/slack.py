"""Use case and route: execute the order of a button that was pressed in a Slack message.

Protocol. The button names a channel. That channel determines the secret that must have signed the
request, and the project of everything else: a signature for one project finds nothing of another.
Then, each in a transaction of its own:

claim
    INSERT of the signature's hash; where the row exists the request is a replay, and refused. Rows
    are deleted once their timestamps are too old to be accepted.
act
    The same use case as a click on the page, in the name of the member.

If a server dies in between, nothing was done: the member presses the button again, and Slack signs
a new request.
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
from app.incidents.channels.slack import SILENCE_HOURS, SLACK, Button, SlackConfig
from app.incidents.deliver import guard
from app.incidents.evaluate import acknowledge_incident, silence_incident
from app.incidents.models.tables import AlertChannel, SlackRequest
from app.incidents.secrets import unseal
from app.incidents.slack import (
    MAX_BODY_BYTES,
    REFUSED,
    WINDOW,
    ButtonPress,
    check_signature,
    read_interaction,
)
from app.platform.container import Container
from app.platform.identity import ActorKind, Principal, Right, clipped
from app.platform.outbound import DeliveryError, Outbound, check
from app.web.bodies import arriving
from app.web.problems import problem_of

# Time limit in seconds of posting the outcome, which follows the answer that Slack waits 3 s for.
REPORT_LIMIT_S: Final = 5.0
# Maximum length in characters of a member's name in the audit log.
NAME_CHARACTERS: Final = 60

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ButtonOutcome:
    """The outcome of a button: a text for the member, and the refusal if it was refused."""

    words: str
    everybody: bool  # whether Slack shows the text to the whole channel
    # Address on Slack's own host; empty if the request names another host
    response_url: str = ""
    refusal: PacelineError | None = None  # error that the request is answered with


@dataclass(frozen=True, slots=True)
class _Channel:
    project_id: int
    config: SlackConfig


def interact(container: Container, body: bytes, timestamp: str, signature: str) -> ButtonOutcome:
    """Execute a signed request; a refusal of the order is returned as an outcome.

    Raises
    ------
    InvalidSlackError, SlackRefusedError
    """
    press = read_interaction(body)
    channel = _verify(container, press, body, timestamp, signature)
    same_host = urlsplit(press.response_url)[:2] == urlsplit(channel.config.url)[:2]
    response_url = press.response_url if same_host else ""
    try:
        words = _press(container, channel, press)
    except PacelineError as error:
        _log.info("button refused", code=error.stable_code, user=press.user.id)
        return ButtonOutcome(
            error.message, everybody=False, response_url=response_url, refusal=error
        )
    return ButtonOutcome(words, everybody=True, response_url=response_url)


def report_outcome(container: Container, outcome: ButtonOutcome) -> None:
    """Post a button's outcome to Slack once, as the incident's page shows it too."""
    if not outcome.response_url:
        return
    body = {
        "response_type": "in_channel" if outcome.everybody else "ephemeral",
        "replace_original": False,
        "text": outcome.words,
    }
    try:
        with Outbound(guard(container.settings), REPORT_LIMIT_S) as outbound:
            check(outbound.post(outcome.response_url, encode(body), JSON_HEADERS))
    except DeliveryError as error:
        _log.info("slack not told", code=error.code, error=error.sentence)


def _verify(
    container: Container, press: ButtonPress, body: bytes, timestamp: str, signature: str
) -> _Channel:
    """Return the channel whose secret signed the request, and record the request as executed."""
    with container.everywhere().reading() as tx:
        row = tx.session.execute(
            select(
                AlertChannel.project_id,
                AlertChannel.config,
                AlertChannel.secrets,
                AlertChannel.enabled,
            ).where(AlertChannel.id == press.channel, AlertChannel.kind == SLACK.name)
        ).one_or_none()
        now = tx.now
    # A missing channel, or a channel without a secret, gets the same answer as a wrong signature.
    if row is None:
        raise SlackRefusedError(REFUSED)
    try:
        config: SlackConfig = SLACK.config.validate_python(
            row.config | unseal(container.settings, row.secrets)
        )
    except SecretKeyError:
        _log.warning("secrets of a channel cannot be read", channel=str(press.channel))
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


def _press(container: Container, channel: _Channel, press: ButtonPress) -> str:
    """Execute the button's order on behalf of the member; return the outcome as a sentence.

    Raises
    ------
    SlackRefusedError, NotFoundError, ConflictError
    """
    user = press.user
    if user.id not in channel.config.operators:
        raise SlackRefusedError(
            f"The member {clipped(user.id, NAME_CHARACTERS)} is no operator of this channel.",
            code="slack.unknown_user",
        )
    name = f"{clipped(user.username or user.id, NAME_CHARACTERS)} (Slack {user.id})"
    rights = frozenset({Right.READ, Right.OPERATE})
    who = Principal(ActorKind.PERSON, name, in_projects=((channel.project_id, rights),))
    project = container.within(channel.project_id, who)
    match press.what:
        case Button.ACKNOWLEDGE:
            acknowledge_incident(project, press.about)
            return f"Acknowledged by <@{user.id}>."
        case Button.SILENCE:
            with project.reading() as tx:
                until = tx.now + timedelta(hours=SILENCE_HOURS)
            reason = f"silenced in Slack for {SILENCE_HOURS} h"
            silence_incident(project, press.about, until=until, reason=reason)
            return f"Silenced by <@{user.id}> until {until:%H:%M} UTC."
        case Button.APPROVE:
            action = allow(project, press.about)
            return f"Approved by <@{user.id}>: `{action.command.replace('`', chr(39))}`"


# Only the signature authenticates the sender, so these requests have their own threads, of this
# number, and cannot occupy those of other requests.
AT_ONCE: Final = 4
WAITING: Final = 64


def router(container: Container) -> APIRouter:
    """Return the route of Slack's buttons; the channel in the request determines the project."""
    routes = api_router("alerts", "/api/v1")
    turns = Turns(AT_ONCE, WAITING)

    @routes.post("/slack/interactions", summary="Buttons in messages of Slack")
    async def post_interaction(
        request: Request,
        timestamp: Annotated[str, Header(alias="X-Slack-Request-Timestamp")] = "",
        signature: Annotated[str, Header(alias="X-Slack-Signature")] = "",
    ) -> Response:
        """Execute a pressed button: a form with `payload`, signed with the app's secret.

        The request is answered within three seconds; the outcome is posted to Slack afterwards.
        """
        arriving(request).limit = MAX_BODY_BYTES
        body = await request.body()
        outcome = await turns.run(partial(interact, container, body, timestamp, signature))
        # Slack shows that the order was refused; the text that follows gives the reason.
        refused = outcome.refusal
        answer = Response() if refused is None else problem_of(refused)
        answer.background = BackgroundTask(report_outcome, container, outcome)
        return answer

    return routes
