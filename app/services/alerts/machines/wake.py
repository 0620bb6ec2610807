"""Use case: look at the incident that speaks for a machine, because of what changed inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, update

from app.alerts.grouping import next_flush
from app.db.models.alerts import AlertIncident, AlertOnHost
from app.services.alerts.machines.leads import LEADS
from app.services.alerts.store import lock_group, timing

if TYPE_CHECKING:
    import uuid

    from app.services.container import Container


def wake(container: Container, lead_id: uuid.UUID) -> None:
    """Let a lead's job be looked at, and its channels be told if that is news."""
    with container.uow() as tx:
        group_id = tx.session.execute(
            select(AlertIncident.group_id).where(AlertIncident.id == lead_id)
        ).scalar()
        group = None if group_id is None else lock_group(tx, group_id, skip_locked=True)
        if group is None:
            return
        woken = tx.session.execute(
            update(AlertOnHost)
            .where(LEADS, AlertOnHost.incident_id == lead_id, AlertOnHost.stirred_at.is_not(None))
            .values(stirred_at=None)
            .returning(AlertOnHost.incident_id)
            .execution_options(synchronize_session=False)
        ).scalar()
        if woken is None:
            return
        group.look_at = tx.now
        group.flush_at = next_flush(
            timing(container.settings), tx.now, group.flushed_at, group.flush_at
        )
