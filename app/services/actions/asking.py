"""Which actions on machines wait for a person, as messages say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ARRAY, Text, any_, literal, select

from app.actions.kinds.registry import title_of
from app.actions.states import ActionState
from app.alerts.message import Asked
from app.db.models.hosts import MachineAction

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from app.db.unit_of_work import Reads


def asked_of(tx: Reads, hosts: Collection[str]) -> Mapping[str, list[Asked]]:
    """Return what waits for a person, by machine.

    Parameters
    ----------
    hosts : collection of str
        Of these; empty names are of none.
    """
    named = sorted(filter(None, hosts))
    if not named:
        return {}
    rows = tx.session.execute(
        select(MachineAction.id, MachineAction.kind, MachineAction.host, MachineAction.command)
        .where(
            MachineAction.host == any_(literal(named, ARRAY(Text))),
            MachineAction.state == ActionState.ASKED,
        )
        .order_by(MachineAction.kind)
    )
    found: dict[str, list[Asked]] = {}
    for row in rows:
        asked = Asked(row.id, title_of(row.kind), row.host, row.command)
        found.setdefault(row.host, []).append(asked)
    return found
