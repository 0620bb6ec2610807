"""Channels: added, edited, tested; their secrets go in and never come out."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from app.alerts.channels.apprise import APPRISE
from app.alerts.channels.registry import KINDS
from app.alerts.rules import Audience, Selector
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertGroup, AlertIncident
from app.errors import ConflictError, Fault, InvalidChannelError, NotFoundError, SecretKeyError
from app.services.alerts.deliver import (
    NO_APPRISE,
    apprise_is_usable,
    disable,
)
from app.services.alerts.routing import SELECTOR
from app.services.alerts.secrets import seal, unseal
from app.services.alerts.store import OPEN, timing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from app.alerts.channels.kind import Kind
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

DISABLED_BY_PERSON: Final = "disabled by hand"


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel without its secrets.

    Parameters
    ----------
    id : UUID
    name, kind : str
    audience : str
    selector : Selector
    config : mapping
        What may be shown.
    secrets : mapping of str to str or None
        Names of the secrets that are set, with the host of those that are addresses; empty where
        they cannot be decrypted.
    readable : bool
        Whether the secrets can be decrypted with the keys that there are.
    enabled : bool
    disabled_reason : str or None
    failures : int
        Attempts that failed since the last one that came through.
    last_error : str or None
        None since the last success.
    last_failure_at, last_success_at : datetime or None
    waiting : int
        Deliveries that are still to come through.
    created_at : datetime
    """

    id: uuid.UUID
    name: str
    kind: str
    audience: Audience
    selector: Selector
    config: Mapping[str, Any]
    secrets: Mapping[str, str | None]
    readable: bool
    enabled: bool
    disabled_reason: str | None
    failures: int
    last_error: str | None
    last_failure_at: datetime | None
    last_success_at: datetime | None
    waiting: int
    created_at: datetime


def list_channels(container: Container) -> list[ChannelView]:
    """Return all channels by name."""
    with container.uow() as tx:
        rows = tx.session.execute(select(AlertChannel).order_by(AlertChannel.name)).scalars().all()
        return [_view(container, tx, row) for row in rows]


def get_channel(container: Container, channel_id: uuid.UUID) -> ChannelView:
    """Return a channel.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        return _view(container, tx, _row(tx, channel_id))


def find_channel(container: Container, name_or_id: str) -> uuid.UUID:
    """Return the id of the channel of this name, or with this id.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        found = tx.session.execute(
            select(AlertChannel.id).where(AlertChannel.name == name_or_id)
        ).scalar()
    if found is not None:
        return found
    try:
        return get_channel(container, uuid.UUID(name_or_id)).id
    except ValueError:
        raise NotFoundError(f"There is no channel {name_or_id}.") from None


def create_channel(  # noqa: PLR0913 - what a channel is made of
    container: Container,
    *,
    name: str,
    kind: str,
    config: Mapping[str, Any],
    audience: Audience = "on_call",
    selector: Selector | None = None,
    enabled: bool = True,
) -> ChannelView:
    """Add a channel; it hears at once of what is going on.

    Raises
    ------
    InvalidChannelError
        With a fault for every field that is wrong.
    ConflictError
        If there is one of this name.
    """
    known = _kind(kind)
    if known is APPRISE and not apprise_is_usable(container.settings):
        raise InvalidChannelError(NO_APPRISE)
    shown, secrets = _checked(known, config)
    row = AlertChannel(
        id=uuid.uuid4(),
        name=name,
        kind=kind,
        audience=audience,
        selector=SELECTOR.dump_python(selector or Selector(), mode="json"),
        config=shown,
        secrets=seal(container.settings, secrets),
        enabled=enabled,
        generation=0,
        disabled_reason=None if enabled else DISABLED_BY_PERSON,
        failures=0,
    )
    try:
        with container.uow() as tx:
            tx.session.add(row)
    except IntegrityError as error:
        raise _taken(name) from error
    look_after_all(container)
    return get_channel(container, row.id)


def update_channel(  # noqa: PLR0913 - what of it is to change
    container: Container,
    channel_id: uuid.UUID,
    *,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    audience: Audience | None = None,
    selector: Selector | None = None,
    enabled: bool | None = None,
) -> ChannelView:
    """Change what is given; fields of `config` that are left out stay, those that are null go.

    Raises
    ------
    NotFoundError, InvalidChannelError, ConflictError
    """
    try:
        with container.uow() as tx:
            row = _locked(tx, channel_id)
            if name is not None:
                row.name = name
            if audience is not None:
                row.audience = audience
            if selector is not None:
                row.selector = SELECTOR.dump_python(selector, mode="json")
            if config is not None:
                before = row.config | unseal(container.settings, row.secrets)
                merged = {k: v for k, v in (before | dict(config)).items() if v is not None}
                row.config, secrets = _checked(_kind(row.kind), merged)
                row.secrets = seal(container.settings, secrets)
                row.hold_until = None
            if enabled is not None and enabled != row.enabled:
                _enable(row) if enabled else disable(tx, row, DISABLED_BY_PERSON)
    except IntegrityError as error:
        raise _taken(name or "") from error
    look_after_all(container)
    return get_channel(container, channel_id)


def delete_channel(container: Container, channel_id: uuid.UUID) -> None:
    """Delete a channel and its deliveries.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        tx.session.delete(_locked(tx, channel_id))


def reseal(container: Container) -> int:
    """Encrypt the secrets of every channel with the newest key; return how many channels."""
    with container.uow() as tx:
        rows = tx.session.execute(
            select(AlertChannel).order_by(AlertChannel.id).with_for_update(key_share=True)
        ).scalars()
        count = 0
        for row in rows:
            row.secrets = seal(container.settings, unseal(container.settings, row.secrets))
            count += 1
    return count


def _enable(row: AlertChannel) -> None:
    """Let it hear of everything anew."""
    row.enabled = True
    row.generation += 1
    row.disabled_reason = None
    row.failures = 0
    row.hold_until = None
    row.last_error = None


def look_after_all(container: Container) -> None:
    """Let every group that has incidents be looked after: a channel may be for them now.

    In a transaction of its own, because groups are locked before channels.
    """
    with container.uow() as tx:
        soon = tx.now + timing(container.settings).group_wait
        going_on = select(AlertIncident.group_id).where(OPEN)
        groups = (
            select(AlertGroup.id)
            .where(AlertGroup.id.in_(going_on))
            .order_by(AlertGroup.id)
            .with_for_update(key_share=True)
        )
        ids = list(tx.session.execute(groups).scalars())
        tx.session.execute(
            update(AlertGroup)
            .where(AlertGroup.id.in_(ids))
            .values(flush_at=func.least(func.coalesce(AlertGroup.flush_at, soon), soon))
        )


def _kind(name: str) -> Kind:
    kind = KINDS.get(name)
    if kind is None:
        known = ", ".join(KINDS)
        raise InvalidChannelError(
            f"There is no kind of channel {name}.",
            faults=(Fault("unknown_kind", f"One of {known}.", column="kind"),),
        )
    return kind


def _checked(kind: Kind, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what may be shown of a configuration, and its secrets."""
    try:
        valid = kind.config.validate_python(dict(config), extra="forbid")
    except ValidationError as error:
        faults = tuple(
            # The value itself stays out of it: it may be a secret.
            Fault(item["type"], item["msg"], column=".".join(("config", *map(str, item["loc"]))))
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise InvalidChannelError("The configuration is not valid.", faults=faults) from None
    document: dict[str, Any] = kind.config.dump_python(valid, mode="json")
    given = {name: value for name, value in document.items() if value not in (None, [])}
    secrets = {name: value for name, value in given.items() if name in kind.secrets}
    return {name: value for name, value in given.items() if name not in secrets}, secrets


def _view(container: Container, tx: UnitOfWork, row: AlertChannel) -> ChannelView:
    waiting = tx.session.execute(
        select(func.count()).where(
            AlertDelivery.channel_id == row.id, AlertDelivery.state.in_(("waiting", "sending"))
        )
    ).scalar_one()
    hints = _hints(container, row)
    return ChannelView(
        id=row.id,
        name=row.name,
        kind=row.kind,
        audience=_AUDIENCES[row.audience],
        selector=SELECTOR.validate_python(row.selector),
        config=row.config,
        secrets=hints or {},
        readable=hints is not None,
        enabled=row.enabled,
        disabled_reason=row.disabled_reason,
        failures=row.failures,
        last_error=row.last_error,
        last_failure_at=row.last_failure_at,
        last_success_at=row.last_success_at,
        waiting=waiting,
        created_at=row.created_at,
    )


_AUDIENCES: Final[Mapping[str, Audience]] = {"on_call": "on_call", "owner": "owner"}


def _hints(container: Container, row: AlertChannel) -> dict[str, str | None] | None:
    """Return which secrets are set; of an address, the host: what people know a channel by."""
    hints: dict[str, str | None] = {}
    try:
        secrets = unseal(container.settings, row.secrets)
    except SecretKeyError:
        return None
    for name, value in secrets.items():
        is_address = isinstance(value, str) and value.startswith(("http://", "https://"))
        hints[name] = urlsplit(value).hostname if is_address else None
    return hints


def _row(tx: UnitOfWork, channel_id: uuid.UUID) -> AlertChannel:
    row = tx.session.get(AlertChannel, channel_id)
    if row is None:
        raise NotFoundError(f"There is no channel {channel_id}.")
    return row


def _locked(tx: UnitOfWork, channel_id: uuid.UUID) -> AlertChannel:
    row = tx.session.execute(
        select(AlertChannel).where(AlertChannel.id == channel_id).with_for_update(key_share=True)
    ).scalar_one_or_none()
    if row is None:
        raise NotFoundError(f"There is no channel {channel_id}.")
    return row


def _taken(name: str) -> ConflictError:
    return ConflictError(f"There is a channel {name} already.", code="channel.name_taken")
