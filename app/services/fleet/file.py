"""The files of the fleet: thousands of jobs, of each what its line says and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Select, and_, case, or_, select, type_coerce
from sqlalchemy.orm import aliased

from app.alerts.states import IncidentState
from app.analysis.budget.document import Losses
from app.analysis.report.verdict import VerdictCause
from app.db.documents import CAUSES
from app.db.models.sessions import Session, StoredVerdict
from app.db.states import SessionState
from app.services.fleet.standing import (
    FleetFilter,
    Moment,
    Show,
    matches,
    order,
    shown,
    silent_order,
    standing,
)

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads
    from app.lists.listing import PageRequest


@dataclass(frozen=True, slots=True)
class Through:
    """The session whose numbers stand for a job: the latest that is through."""

    state: SessionState
    world: int
    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    # of its verdict
    level: str | None
    slowdown: float | None
    low: float | None
    high: float | None
    published: float | None
    lost: float | None
    stragglers: float | None
    between: float | None
    together: float | None
    causes: Sequence[VerdictCause] | None  # where one of them is named

    @property
    def measured(self) -> float | None:
        """Return how slow it is; None without a verdict, or while that is made anew."""
        return self.slowdown if self.state is SessionState.ANALYZED else None

    @property
    def lost_each_hour(self) -> float | None:
        """Return the GPU-hours that the largest known loss costs in each hour of running."""
        known = self.state in SessionState.REPORTED and self.lost is not None
        return self.world * self.lost if known and self.lost is not None else None

    @property
    def losses(self) -> Losses | None:
        """Return what of the time is lost to what; None where that is not known."""
        found = (self.stragglers, self.between, self.together)
        if self.state not in SessionState.REPORTED or None in found:
            return None
        return Losses(*(share or 0.0 for share in found))


@dataclass(frozen=True, slots=True)
class FileJob:
    """A job as a line of a file has it."""

    name: str
    labels: Mapping[str, str]
    incident: IncidentState | None  # of the most pressing open one
    told: Through
    # of its latest session
    state: SessionState
    number: int
    received_at: datetime
    reason: str | None
    reason_code: str | None
    discrepancy: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a silent job stands among these: what they are in order by."""

    rank: int
    received_at: datetime
    name: str


# Columns of `_query` up to those of the session whose numbers stand, and with them.
_LATEST: Final = 9
_TOLD: Final = _LATEST + len(fields(Through))

_latest, _told = aliased(Session), aliased(Session)
_of_latest, _verdict = aliased(StoredVerdict), aliased(StoredVerdict)


def heard_jobs(tx: Reads, at: Moment, filters: FleetFilter, page: PageRequest) -> list[FileJob]:
    """Return a page of the jobs with data in a time, as the fleet's page orders them.

    It is the last one that is not full.
    """
    one = standing(at, archived=filters.show is Show.ARCHIVED).c
    query = _query(one, at, filters).where(one.heard).order_by(*order(one, page.sort))
    query = query.limit(page.size).offset(page.size * (page.page - 1))
    return [_job(row) for row in tx.session.execute(query)]


def silent_jobs(
    tx: Reads, at: Moment, filters: FleetFilter, after: Place | None, size: int
) -> tuple[list[FileJob], Place | None]:
    """Return the next silent jobs in the order of pages, and where the last one of them stands.

    Parameters
    ----------
    after : Place or None
        Where the last one before these stands; None for the first ones.
    size : int
        At most; fewer are all that there are.
    """
    one = standing(at, archived=filters.show is Show.ARCHIVED).c
    query = _query(one, at, filters).where(~one.heard).order_by(*silent_order(one)).limit(size)
    if after is not None:
        query = query.where(
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
    found = tx.session.execute(query.add_columns(one.rank)).all()
    jobs = [_job(row) for row in found]
    last = jobs[-1] if len(jobs) == size else None
    place = None if last is None else Place(found[-1].rank, last.received_at, last.name)
    return jobs, place


def _query(one: Any, at: Moment, filters: FleetFilter) -> Select[Any]:  # noqa: ANN401 - columns of a CTE
    is_slow = or_(_verdict.level == "slow", _verdict.slowdown >= at.slow)
    named = or_(
        and_(_told.state == SessionState.ANALYZED, is_slow),
        _told.state == SessionState.NO_VERDICT,
    )
    columns: list[ColumnElement[Any]] = [
        one.name,
        one.labels,
        one.incident_state,
        _latest.state.label("state"),
        _latest.number.label("number"),
        _latest.received_at.label("received_at"),
        _latest.reason.label("reason"),
        _latest.reason_code.label("reason_code"),
        _of_latest.discrepancy.label("discrepancy"),
        _told.state.label("told_state"),
        _told.world.label("world"),
        _told.dp.label("dp"),
        _told.pp.label("pp"),
        _told.tp.label("tp"),
        _told.cp.label("cp"),
        _told.vpp.label("vpp"),
        _verdict.level.label("level"),
        _verdict.slowdown.label("slowdown"),
        _verdict.low.label("low"),
        _verdict.high.label("high"),
        _verdict.published.label("published"),
        _verdict.lost.label("lost"),
        _verdict.lost_to_stragglers.label("stragglers"),
        _verdict.lost_between.label("between"),
        _verdict.lost_together.label("together"),
        # A document takes as long to read as all the rest of a line.
        type_coerce(case((named, _verdict.document["causes"])), CAUSES).label("causes"),
    ]
    return (
        select(*columns)
        .join(_latest, _latest.id == one.latest)
        .join(_told, _told.id == one.told)
        .outerjoin(_of_latest, _of_latest.session_id == one.latest)
        .outerjoin(_verdict, _verdict.session_id == one.told)
        .where(matches(one, filters), shown(one, filters.show))
    )


def _job(row: Any) -> FileJob:  # noqa: ANN401 - a row of `_query`
    name, labels, incident = row[:3]
    state = None if incident is None else IncidentState(incident)
    # The order of the others is that of the fields.
    latest, told = row[3:_LATEST], row[_LATEST:_TOLD]
    return FileJob(name, labels or {}, state, Through(*told), *latest)
