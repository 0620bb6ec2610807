"""The jobs without data in a time, page after page: each begins after the last job of another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, or_, select

from app.services.fleet.rows import Found, Standing, sessions_of, standing_of
from app.services.fleet.standing import FleetFilter, Moment, Show, matches, shown, standing

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class Place:
    """Where a silent job stands among these: what they are in order by."""

    rank: int
    received_at: datetime
    name: str


def silent_after(
    tx: Reads, at: Moment, filters: FleetFilter, after: Place | None, size: int
) -> tuple[list[Standing], Place | None]:
    """Return the next silent jobs in the order of pages, and where the last one of them stands.

    Parameters
    ----------
    after : Place or None
        Where the last one before these stands; None for the first ones.
    size : int
        At most `limit`; fewer are all that there are.
    """
    one = standing(at, archived=filters.show is Show.ARCHIVED).c
    listed = [~one.heard, matches(one, filters), shown(one, filters.show)]
    if after is not None:
        listed.append(
            or_(
                one.rank > after.rank,
                and_(
                    one.rank == after.rank,
                    or_(
                        one.received_at < after.received_at,
                        and_(one.received_at == after.received_at, one.name > after.name),
                    ),
                ),
            )
        )
    found = [
        (Found(*row[:-2]), Place(row.rank, row.received_at, row.name))
        for row in tx.session.execute(
            select(
                one.job_id,
                one.name,
                one.latest,
                one.told,
                one.labels,
                one.incident,
                one.incident_state,
                one.finished,
                one.rank,
                one.received_at,
            )
            .where(*listed)
            .order_by(*silent_order(one))
            .limit(size)
        )
    ]
    sessions = sessions_of(tx, {id_ for row, _ in found for id_ in (row.latest, row.told)})
    last = found[-1][1] if len(found) == size else None
    return [standing_of(row, sessions, ()) for row, _ in found], last


def silent_order(one: Any) -> list[ColumnElement[Any]]:  # noqa: ANN401 - columns of a CTE
    """Return what silent jobs are in order by, of columns of `standing`."""
    return [one.rank.asc(), one.received_at.desc(), one.name.asc()]
