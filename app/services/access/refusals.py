"""Write what was refused into the audit log: counted, so that the log cannot be filled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from app.access.principals import Principal
from app.services.access.audit import Action, record

if TYPE_CHECKING:
    from app.services.container import Container


def write_refusals(container: Container) -> int:
    """Write the refusals that were counted since the last time; return how many lines.

    Raises
    ------
    SQLAlchemyError
        The database does not answer: they are kept for the next time.
    """
    counted = container.refusals.take()
    if not counted:
        return 0
    try:
        with container.everywhere().uow() as tx:
            for refusal, count in counted.items():
                record(
                    tx,
                    Principal(refusal.kind, refusal.actor),
                    Action.REFUSED,
                    refusal.subject,
                    detail=refusal.reason,
                    count=count,
                )
    except SQLAlchemyError:
        for refusal, count in counted.items():
            container.refusals.note(refusal, count)
        raise
    return len(counted)
