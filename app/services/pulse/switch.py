"""Use case: whether a project takes pulses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, update

from app.db.models.access import Project
from app.errors import ConflictError
from app.services.access.audit import Action, record

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.container import Container


class PulseOffError(ConflictError):
    """The project takes no pulses."""

    code = "pulse.off"


def pulse_is_off(tx: Reads) -> bool:
    """Return whether pulses of the transaction's project are refused."""
    query = select(Project.pulse_off).where(Project.id == tx.scope.project_id)
    return tx.session.execute(query).scalar_one()


def switch_pulse(container: Container, *, on: bool) -> None:
    """Take the pulses of a project's jobs from now on, or refuse them; what is kept stays."""
    with container.uow() as tx:
        changed = tx.session.execute(
            update(Project)
            .where(Project.id == container.project_id, Project.pulse_off == on)
            .values(pulse_off=not on)
            .returning(Project.id)
        ).scalar()
        if changed is not None:
            detail = "on" if on else "off"
            record(tx, container.principal, Action.CHANGED, "pulse", detail=detail)
