"""What every page shows: how many incidents fire, which channels are dead, what asks a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select, true

from app.actions.states import ActionState
from app.alerts.states import IncidentState
from app.db.models.alerts import AlertChannel, AlertIncident
from app.db.models.hosts import MachineAction
from app.services.alerts.channels.reads import is_dead
from app.services.alerts.store import INSIDE

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class Navigation:
    """The counts and the name in the navigation."""

    firing: int  # incidents that fire and are not acknowledged
    # Names of the channels that deliver nothing although no user disabled them.
    dead_channels: tuple[str, ...]
    asked: int = 0  # actions on machines that wait for a person
    signed_in: str = ""  # name of the person whose page it is; empty without sign-in
    operates: bool = True  # whether they may act in the project
    ingests: bool = True  # whether they may send recordings to it
    administers: bool = False  # whether they administer the installation
    base: str = ""  # what stands before the paths of the project's pages


def navigation(tx: Reads) -> Navigation:
    """Return what every page shows, with one statement."""
    firing = (
        select(func.count().label("firing"))
        .where(AlertIncident.state == IncidentState.FIRING, ~INSIDE)
        .subquery()
    )
    asked = select(func.count()).where(MachineAction.state == ActionState.ASKED)
    rows = tx.session.execute(
        select(
            func.now().label("now"),
            firing.c.firing,
            asked.scalar_subquery().label("asked"),
            AlertChannel.name,
            AlertChannel.readable,
            AlertChannel.enabled,
            AlertChannel.disabled_reason,
            AlertChannel.failures,
        )
        # One row without a channel, where there is none.
        .select_from(firing)
        .outerjoin(AlertChannel, true())
        .order_by(AlertChannel.name)
    ).all()
    # Most pages ask for it.
    tx.is_at(rows[0].now)
    return Navigation(
        firing=rows[0].firing,
        asked=rows[0].asked,
        dead_channels=tuple(
            row.name
            for row in rows
            if row.name is not None
            and is_dead(
                readable=row.readable,
                enabled=row.enabled,
                disabled_reason=row.disabled_reason,
                failures=row.failures,
            )
        ),
    )
