"""Use cases: create, change and delete channels; their secrets are never returned."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from app.access.audit import Action, record
from app.errors import ConflictError, Fault, InvalidChannelError
from app.incidents.channel_reads import DISABLED_BY_PERSON, ChannelView, get_channel, no_channel
from app.incidents.channel_settings import changed_config, refuse_private
from app.incidents.channels.apprise import APPRISE
from app.incidents.channels.kind import ChannelKind
from app.incidents.channels.registry import KINDS
from app.incidents.deliver import NO_APPRISE, apprise_is_usable, disable
from app.incidents.models.rules import Audience, Selector
from app.incidents.models.tables import AlertChannel, AlertGroup, AlertIncident
from app.incidents.routing import SELECTOR
from app.incidents.secrets import hints, seal, unseal
from app.incidents.store import OPEN, timing
from app.platform.container import Container
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.names import lookalike

# Default limit of messages to a channel in ten minutes.
RATE_LIMIT: Final = 10
# Largest limit of messages in ten minutes that a user may set.
MOST_MESSAGES: Final = 100_000


def create_channel(  # noqa: PLR0913 - fields of a channel
    container: Container,
    *,
    name: str,
    kind: str,
    config: Mapping[str, Any],
    audience: Audience = "on_call",
    selector: Selector | None = None,
    enabled: bool = True,
    rate_limit: int = RATE_LIMIT,
) -> ChannelView:
    """Create a channel; it gets the incidents that fire from now on.

    Raises
    ------
    InvalidChannelError
        With a fault for each invalid field.
    ConflictError
        If a channel of this name exists.
    """
    _check_name(name)
    channel_kind = _kind(kind)
    if channel_kind is APPRISE and not apprise_is_usable(container.settings):
        raise InvalidChannelError(NO_APPRISE)
    shown, secrets = changed_config(channel_kind, {}, config, InvalidChannelError)
    refuse_private(container.settings, shown | secrets, InvalidChannelError)
    row = AlertChannel(
        id=uuid.uuid4(),
        name=name,
        kind=kind,
        audience=audience,
        selector=SELECTOR.dump_python(selector or Selector(), mode="json"),
        config=shown,
        enabled=enabled,
        per_10_min=rate_limit,
        generation=0,
        disabled_reason=None if enabled else DISABLED_BY_PERSON,
        failures=0,
    )
    _store_secrets(container, row, secrets)
    try:
        with container.uow() as tx:
            tx.session.add(row)
            record(tx, container.principal, Action.CREATED, f"channel {name}")
    except IntegrityError as error:
        raise _name_taken(name) from error
    flush_all_groups(container)
    return _read(container, row.id)


def update_channel(  # noqa: PLR0913 - fields of a channel
    container: Container,
    channel_id: uuid.UUID,
    *,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    audience: Audience | None = None,
    selector: Selector | None = None,
    enabled: bool | None = None,
    rate_limit: int | None = None,
) -> ChannelView:
    """Change the given fields; null removes a field of `config`, absent fields are kept.

    Raises
    ------
    NotFoundError, InvalidChannelError, ConflictError
    """
    # Called before the transaction, because it waits for DNS.
    refuse_private(container.settings, config or {}, InvalidChannelError)
    try:
        with container.uow() as tx:
            row = _locked(tx, channel_id)
            if name is not None and name != row.name:
                _check_name(name)
                row.name = name
            if audience is not None:
                row.audience = audience
            if selector is not None:
                row.selector = SELECTOR.dump_python(selector, mode="json")
            if rate_limit is not None:
                row.per_10_min = rate_limit
            if config is not None:
                before = row.config | unseal(container.settings, row.secrets)
                row.config, secrets = changed_config(
                    _kind(row.kind), before, config, InvalidChannelError
                )
                _store_secrets(container, row, secrets)
                row.hold_until = None
            if enabled is not None and enabled != row.enabled:
                _enable(row) if enabled else disable(tx, row, DISABLED_BY_PERSON)
            given = {
                "name": name,
                "configuration": config,
                "audience": audience,
                "selector": selector,
                "enabled": enabled,
                "rate limit": rate_limit,
            }
            record(
                tx,
                container.principal,
                Action.CHANGED,
                f"channel {row.name}",
                # The audit log gets the names of the settings only, because values may be secrets.
                detail=", ".join(key for key, value in given.items() if value is not None),
            )
    except IntegrityError as error:
        raise _name_taken(name or "") from error
    flush_all_groups(container)
    return _read(container, channel_id)


def delete_channel(container: Container, channel_id: uuid.UUID) -> None:
    """Delete a channel and its deliveries.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        row = _locked(tx, channel_id)
        tx.session.delete(row)
        record(tx, container.principal, Action.DELETED, f"channel {row.name}")


def reseal(container: Container) -> int:
    """Encrypt the secrets of all channels with the newest key; return the number of channels."""
    with container.uow() as tx:
        rows = tx.session.execute(
            select(AlertChannel).order_by(AlertChannel.id).with_for_update(key_share=True)
        ).scalars()
        count = 0
        for row in rows:
            _store_secrets(container, row, unseal(container.settings, row.secrets))
            count += 1
        record(
            tx,
            container.principal,
            Action.CHANGED,
            "all channels",
            detail="secrets encrypted with the newest key",
        )
    return count


def _read(container: Container, channel_id: uuid.UUID) -> ChannelView:
    with container.reading() as tx:
        return get_channel(tx, channel_id)


def _store_secrets(container: Container, row: AlertChannel, secrets: dict[str, Any]) -> None:
    """Encrypt secrets into a channel's row, with their public hints."""
    row.secrets = seal(container.settings, secrets)
    row.secret_hints = hints(secrets)
    row.readable = True


def _enable(row: AlertChannel) -> None:
    """Enable a channel; all open incidents are sent to it again."""
    row.enabled = True
    row.generation += 1
    row.disabled_reason = None
    row.failures = 0
    row.hold_until = None
    row.last_error = None


def flush_all_groups(container: Container) -> None:
    """Schedule a flush of all groups with open incidents, which may now be routed to a channel.

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


def _check_name(name: str) -> None:
    alike = lookalike(name)
    if alike is not None:
        raise InvalidChannelError(
            "The channel cannot be saved.",
            faults=(Fault("lookalike", f"The name {alike}.", column="name"),),
        )


def _kind(name: str) -> ChannelKind:
    kind = KINDS.get(name)
    if kind is None:
        names = ", ".join(KINDS)
        raise InvalidChannelError(
            f"There is no kind of channel {name}.",
            faults=(Fault("unknown_kind", f"One of {names}.", column="kind"),),
        )
    return kind


def _locked(tx: UnitOfWork, channel_id: uuid.UUID) -> AlertChannel:
    row = tx.session.execute(
        select(AlertChannel).where(AlertChannel.id == channel_id).with_for_update(key_share=True)
    ).scalar_one_or_none()
    if row is None:
        raise no_channel(channel_id)
    return row


def _name_taken(name: str) -> ConflictError:
    return ConflictError(f"There is a channel {name} already.", code="channel.name_taken")
