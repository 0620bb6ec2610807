"""Policies of a project for each kind of action, and its kill switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import delete, func, select

from app.access.audit import Action, record
from app.actions.kinds.kind import ActionKind
from app.actions.kinds.registry import KINDS
from app.actions.models import (
    ActionMode,
    ActionPolicy,
    ActionSwitch,
    ScheduledNode,
    SchedulerInventory,
)
from app.actions.store import lock_switch
from app.errors import InvalidActionError, NotFoundError
from app.incidents.channel_settings import changed_config, refuse_private
from app.incidents.secrets import hints, seal, unseal
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.settings import Settings

NO_SCONTROL: Final = (
    "Actions of this kind need PACELINE_SLURM_SCONTROL, the path of scontrol: they act with the "
    "rights of the server's own user."
)


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What the scheduler of a kind of action said last about the project's jobs."""

    answered_at: datetime | None  # None if it has not answered yet
    nodes: int  # number of nodes on which it ran jobs of the project lately
    # error_code, error: why the last attempt failed; None after an answer
    error_code: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class PolicyView:
    """A project's policy for a kind of action, with only the names of its secrets."""

    kind: str
    title: str
    mode: ActionMode
    config: Mapping[str, Any]  # configuration without its secret fields
    # names of the secrets that are set, with the host of each secret that is an address
    secrets: Mapping[str, str | None]
    # changed_at, changed_by: None if the policy was never set
    changed_at: datetime | None
    changed_by: str | None
    # None for kinds without a scheduler, and before the scheduler was queried
    scheduler: SchedulerView | None = None


@dataclass(frozen=True, slots=True)
class SwitchView:
    """The kill switch."""

    stopped: bool
    by_operator: bool  # whether the installation's setting stops all projects
    # stopped_at, stopped_by, reason: state of the project's own switch
    stopped_at: datetime | None
    stopped_by: str | None
    reason: str | None


def list_policies(tx: Reads) -> list[PolicyView]:
    """Return the policies of all kinds of actions; a policy that was never set is off."""
    rows = {row.kind: row for row in tx.session.execute(select(ActionPolicy)).scalars()}
    return [_view(tx, kind, rows.get(kind.name)) for kind in KINDS.values()]


def get_policy(tx: Reads, name: str) -> PolicyView:
    """Return the policy for a kind of action.

    Raises
    ------
    NotFoundError
    """
    row = tx.session.execute(select(ActionPolicy).where(ActionPolicy.kind == name))
    return _view(tx, kind_of(name), row.scalar_one_or_none())


def set_policy(
    container: Container,
    name: str,
    *,
    mode: ActionMode | None = None,
    config: Mapping[str, Any] | None = None,
) -> PolicyView:
    """Change the given fields; null removes a field of `config`, absent fields are kept.

    A kind that is configured for the first time is in a dry run, unless a mode is given.

    Raises
    ------
    NotFoundError, InvalidActionError
    """
    kind = kind_of(name)
    if kind.needs_scontrol and container.settings.slurm_scontrol is None:
        raise InvalidActionError(NO_SCONTROL)
    # Called before the transaction, because it waits for DNS.
    refuse_private(container.settings, config or {}, InvalidActionError)
    with container.uow() as tx:
        now = tx.now
        lock_switch(tx)
        row = tx.session.execute(
            select(ActionPolicy).where(ActionPolicy.kind == name).with_for_update()
        ).scalar_one_or_none()
        stored = {} if row is None else row.config | unseal(container.settings, row.secrets)
        shown, secrets = changed_config(kind, stored, config or {}, InvalidActionError)
        if row is None:
            row = ActionPolicy(kind=name, mode=ActionMode.DRY_RUN)
            tx.session.add(row)
        row.mode = mode or row.mode
        row.config, row.secrets = shown, seal(container.settings, secrets)
        row.secret_hints = hints(secrets)
        row.changed_at, row.changed_by = now, container.principal.name
        if kind.scheduler is not None:
            _read_soon(tx, kind.name, forget=_scope(kind, stored) != _scope(kind, shown | secrets))
        given = [f"mode {row.mode}"] * (mode is not None)
        # The audit log gets the names of the settings only, because values may be secrets.
        given += ["configuration"] * (config is not None)
        record(
            tx,
            container.principal,
            Action.CHANGED,
            f"policy of actions {name}",
            detail=", ".join(given),
        )
        tx.session.flush()
        return _view(tx, kind, row)


def _scope(kind: ActionKind, config: Mapping[str, Any]) -> Sequence[str] | None:
    """Return what selects the project's jobs in a configuration; None without a configuration."""
    if kind.scheduler is None or not config:
        return None
    try:
        return kind.scheduler.scope(kind.config.validate_python(config))
    except ValidationError:
        # An older version stored it: the configuration that replaces it is of another scope.
        return None


def _read_soon(tx: UnitOfWork, name: str, *, forget: bool) -> None:
    """Let the scheduler of a kind be read in the next pass.

    Parameters
    ----------
    forget : bool
        Whether the stored placements are deleted, because they are of another scope.
    """
    inventory = inventory_of(tx, name)
    if inventory is not None:
        inventory.next_at, inventory.failures = tx.now, 0
    if forget:
        tx.session.execute(delete(ScheduledNode).where(ScheduledNode.kind == name))
        if inventory is not None:
            inventory.answered_at = inventory.error_code = inventory.error = None


def inventory_of(tx: Reads, name: str) -> SchedulerInventory | None:
    """Return the inventory of a kind's scheduler; None if it was never due."""
    return tx.session.execute(
        select(SchedulerInventory).where(SchedulerInventory.kind == name)
    ).scalar_one_or_none()


def get_switch(settings: Settings, tx: Reads) -> SwitchView:
    """Return the kill switch of a project."""
    row = tx.session.execute(select(ActionSwitch)).scalar_one_or_none()
    stopped_at = None if row is None else row.stopped_at
    return SwitchView(
        stopped=settings.actions_off or stopped_at is not None,
        by_operator=settings.actions_off,
        stopped_at=stopped_at,
        stopped_by=None if row is None else row.stopped_by,
        reason=None if row is None else row.reason,
    )


def set_switch(container: Container, *, stopped: bool, reason: str | None = None) -> SwitchView:
    """Stop or resume all actions of a project; idempotent."""
    with container.uow() as tx:
        switch = lock_switch(tx)
        if stopped != (switch.stopped_at is not None):
            switch.stopped_at = tx.now if stopped else None
            switch.stopped_by = container.principal.name if stopped else None
            switch.reason = reason if stopped else None
            action = Action.STOPPED if stopped else Action.STARTED
            record(tx, container.principal, action, "all actions on machines", detail=reason)
        tx.session.flush()
        return get_switch(container.settings, tx)


def reseal_policies(container: Container) -> int:
    """Encrypt the secrets of all policies with the newest key; return the number of policies."""
    with container.uow() as tx:
        rows = tx.session.execute(
            select(ActionPolicy)
            .order_by(ActionPolicy.project_id, ActionPolicy.kind)
            .with_for_update(key_share=True)
        ).scalars()
        count = 0
        for row in rows:
            row.secrets = seal(container.settings, unseal(container.settings, row.secrets))
            count += 1
    return count


def kind_of(name: str) -> ActionKind:
    """Return a kind of action.

    Raises
    ------
    NotFoundError
    """
    kind = KINDS.get(name)
    if kind is None:
        raise NotFoundError(f"There is no kind of action {name}: one of {', '.join(KINDS)}.")
    return kind


def open_config(settings: Settings, row: ActionPolicy) -> Any:  # noqa: ANN401 - of the kind
    """Return the configuration of a policy with its secrets decrypted.

    Raises
    ------
    SecretKeyError
    """
    return KINDS[row.kind].config.validate_python(row.config | unseal(settings, row.secrets))


def _view(tx: Reads, kind: ActionKind, row: ActionPolicy | None) -> PolicyView:
    if row is None:
        return PolicyView(kind.name, kind.title, ActionMode.OFF, {}, {}, None, None)
    return PolicyView(
        kind.name,
        kind.title,
        row.mode,
        row.config,
        row.secret_hints,
        row.changed_at,
        row.changed_by,
        None if kind.scheduler is None else _scheduler(tx, kind.name),
    )


def _scheduler(tx: Reads, name: str) -> SchedulerView | None:
    inventory = inventory_of(tx, name)
    if inventory is None:
        return None
    nodes = tx.session.execute(
        select(func.count(ScheduledNode.node.distinct())).where(ScheduledNode.kind == name)
    ).scalar_one()
    return SchedulerView(inventory.answered_at, nodes, inventory.error_code, inventory.error)
