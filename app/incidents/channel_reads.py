"""Reads of channels: settings and health, without decrypting secrets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, Select, func, select
from sqlalchemy.dialects.postgresql import distinct_on

from app.errors import NotFoundError
from app.incidents.models.rules import Audience, Selector
from app.incidents.models.tables import AlertChannel, AlertDelivery, DeliveryState
from app.incidents.routing import SELECTOR
from app.platform.database.unit_of_work import Reads

DISABLED_BY_PERSON: Final = "disabled by hand"

# Number of consecutive failures from which a channel counts as dead.
FAILING: Final = 3
COUNTED_FOR: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel, with the names of its secrets and the hosts of secret addresses."""

    id: uuid.UUID
    name: str
    kind: str
    audience: Audience
    selector: Selector
    config: Mapping[str, Any]  # configuration without its secret fields
    # Names of the secrets that are set, with the host of each secret that is an address; empty if
    # the secrets cannot be decrypted.
    secrets: Mapping[str, str | None]
    readable: bool  # whether the keys of the workers decrypted the secrets at the last check
    enabled: bool
    rate_limit: int  # limit of messages in ten minutes; further messages go into the next digest
    disabled_reason: str | None
    failures: int  # number of failed attempts since the last success
    last_error: str | None  # error of the last attempt; None since the last success
    last_failure_at: datetime | None
    last_success_at: datetime | None
    waiting: int  # number of deliveries that are not finished
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a channel's deliveries in the last 24 hours, and its latest outcome."""

    delivered: int = 0
    failed: int = 0
    status: int | None = None  # status of the receiver's HTTP answer
    # error, answer: our message about a failure, and the beginning of the receiver's answer
    error: str | None = None
    answer: str | None = None


def is_dead(*, readable: bool, enabled: bool, disabled_reason: str | None, failures: int) -> bool:
    """Return whether a channel delivers nothing although no user disabled it."""
    if not enabled:
        return disabled_reason != DISABLED_BY_PERSON
    return not readable or failures >= FAILING


def list_channels(tx: Reads) -> list[ChannelView]:
    """Return all channels, sorted by name."""
    return [_view(row) for row in tx.session.execute(_channels())]


def get_channel(tx: Reads, channel_id: uuid.UUID) -> ChannelView:
    """Return a channel.

    Raises
    ------
    NotFoundError
    """
    row = tx.session.execute(_channels().where(AlertChannel.id == channel_id)).one_or_none()
    if row is None:
        raise no_channel(channel_id)
    return _view(row)


def channels_and_tallies(tx: Reads) -> tuple[list[ChannelView], dict[uuid.UUID, Tally]]:
    """Return all channels sorted by name, and the tallies of channels with deliveries."""
    state = AlertDelivery.state
    recent = AlertDelivery.created_at >= func.now() - COUNTED_FOR
    counted = (
        select(
            AlertDelivery.channel_id,
            func.count().filter(state == DeliveryState.DELIVERED).label("delivered"),
            func.count().filter(state == DeliveryState.FAILED).label("failed"),
        )
        .where(recent)
        .group_by(AlertDelivery.channel_id)
        .subquery()
    )
    # A delivery that waits for another attempt has no finish time.
    moment = func.coalesce(AlertDelivery.finished_at, AlertDelivery.next_attempt_at)
    latest = (
        select(
            AlertDelivery.channel_id,
            AlertDelivery.answer_status,
            AlertDelivery.error,
            AlertDelivery.answer,
        )
        .where(recent, AlertDelivery.attempt > 0)
        .ext(distinct_on(AlertDelivery.channel_id))
        .order_by(AlertDelivery.channel_id, moment.desc())
        .subquery()
    )
    rows = tx.session.execute(
        _channels()
        .add_columns(
            counted.c.delivered.label("sent"),
            counted.c.failed.label("lost"),
            latest.c.answer_status,
            latest.c.error,
            latest.c.answer,
        )
        .outerjoin(counted, counted.c.channel_id == AlertChannel.id)
        .outerjoin(latest, latest.c.channel_id == AlertChannel.id)
    ).all()
    return [_view(row) for row in rows], {
        row.id: Tally(row.sent, row.lost, row.answer_status, row.error, row.answer)
        for row in rows
        if row.sent is not None
    }


def no_channel(channel_id: uuid.UUID) -> NotFoundError:
    """Return the error for an unknown channel."""
    return NotFoundError(f"There is no channel {channel_id}.")


_SHOWN: Final = (
    AlertChannel.id,
    AlertChannel.name,
    AlertChannel.kind,
    AlertChannel.audience,
    AlertChannel.selector,
    AlertChannel.config,
    AlertChannel.secret_hints,
    AlertChannel.readable,
    AlertChannel.enabled,
    AlertChannel.per_10_min,
    AlertChannel.disabled_reason,
    AlertChannel.failures,
    AlertChannel.last_error,
    AlertChannel.last_failure_at,
    AlertChannel.last_success_at,
    AlertChannel.created_at,
)
_WAITING: Final = (
    select(func.count())
    .where(
        AlertDelivery.channel_id == AlertChannel.id,
        AlertDelivery.state.in_(DeliveryState.UNDERWAY),
    )
    .correlate(AlertChannel)
    .scalar_subquery()
)


def _channels() -> Select[Any]:
    return select(*_SHOWN, _WAITING.label("waiting")).order_by(AlertChannel.name)


def _view(row: Row[Any]) -> ChannelView:
    return ChannelView(
        id=row.id,
        name=row.name,
        kind=row.kind,
        audience=_AUDIENCES[row.audience],
        selector=SELECTOR.validate_python(row.selector),
        config=row.config,
        secrets=row.secret_hints if row.readable else {},
        readable=row.readable,
        enabled=row.enabled,
        rate_limit=row.per_10_min,
        disabled_reason=row.disabled_reason,
        failures=row.failures,
        last_error=row.last_error,
        last_failure_at=row.last_failure_at,
        last_success_at=row.last_success_at,
        waiting=row.waiting,
        created_at=row.created_at,
    )


_AUDIENCES: Final[Mapping[str, Audience]] = {"on_call": "on_call", "owner": "owner"}
