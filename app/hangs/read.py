"""Queries of stored hangs for lists, pages and the API."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Select, func, select

from app.analysis.hangs.document import HangDocument
from app.analysis.hangs.findings import HangKind
from app.errors import NotFoundError
from app.hangs.models import StoredHang, open_hang
from app.incidents.models.facts import HangFacts
from app.jobs.models import Job
from app.platform.database.columns import as_json
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads
from app.tensor.models import TensorGroup
from app.web.lists import Column

# Largest number of a job's hangs in a list; the latest are listed.
MOST_LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class HangRow:
    """A hang as a row of lists."""

    id: Annotated[uuid.UUID, Column(csv="hang")]
    job: str
    created_at: Annotated[datetime, Column(csv="received_at")]
    changed_at: datetime
    """When its last file was received."""
    over_at: datetime | None
    over_by: str | None
    """Name of the person who ended it; None if a later session of the job ended it."""
    kind: HangKind
    sentence: str
    since: datetime | None
    """When ranks began to wait, by the clocks of their hosts."""
    ranks: int
    waiting: int
    culprits: int
    confidence: float
    now: datetime
    """When the row was read."""

    @property
    def facts(self) -> HangFacts:
        """Return the facts from which the hang's duration and cost are computed."""
        return HangFacts(
            id=self.id,
            since=self.since,
            created_at=self.created_at,
            changed_at=self.changed_at,
            over_at=self.over_at,
            ranks=self.ranks,
            waiting=self.waiting,
            confidence=self.confidence,
        )

    @property
    def is_past(self) -> bool:
        """Return whether the hang's files are of an earlier day, so that its end is unknown."""
        return self.facts.is_past

    @property
    def is_going_on(self) -> bool:
        """Return whether the hang is open."""
        return self.facts.is_going_on(self.now)

    @property
    def began(self) -> datetime:
        """Return when the hang began, at the latest when its first file was received."""
        return self.facts.began

    @property
    def lasted(self) -> timedelta:
        """Return the duration of the hang, up to now if it is open."""
        return self.facts.lasted(self.now)

    @property
    def gpu_hours(self) -> float:
        """Return the cost of the hang in GPU-hours."""
        return self.facts.gpu_hours(self.now)


_HANGS: Final = TypeAdapter(list[HangRow])


def hangs_of_job(tx: Reads, job: str, most: int = MOST_LISTED) -> list[HangRow]:
    """Return the hangs of a job, the latest first."""
    query = _latest(job, most)
    return [HangRow(**row._asdict(), now=tx.now) for row in tx.session.execute(query)]


def hangs_and_groups(tx: Reads, job: str, most: int = MOST_LISTED) -> tuple[list[HangRow], int]:
    """Return the hangs of a job, and its number of tensor-parallel groups, with one statement."""
    groups = select(func.count(func.distinct(TensorGroup.name))).join(
        Job, Job.id == TensorGroup.job_id
    )
    rows, count = tx.session.execute(
        select(as_json(_latest(job, most)), groups.where(Job.name == job).scalar_subquery())
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    return _HANGS.validate_python([{**row, "now": tx.now} for row in rows or ()]), count


def get_hang(tx: Reads, hang: uuid.UUID) -> tuple[HangRow, HangDocument]:
    """Return a hang with its document.

    Raises
    ------
    NotFoundError
    """
    stored = tx.session.execute(
        _rows().add_columns(StoredHang.document).where(StoredHang.id == hang)
    ).one_or_none()
    if stored is None:
        raise NotFoundError(f"There is no hang {hang}.")
    row = stored._asdict()
    document = open_hang(row.pop("document"))
    return HangRow(**row, now=tx.now), document


def _latest(job: str, most: int) -> Select[*tuple[Any, ...]]:
    return _rows().where(Job.name == job).order_by(StoredHang.created_at.desc()).limit(most)


def _rows() -> Select[*tuple[Any, ...]]:
    return select(
        StoredHang.id,
        Job.name.label("job"),
        StoredHang.created_at,
        StoredHang.changed_at,
        StoredHang.over_at,
        StoredHang.over_by,
        StoredHang.kind,
        StoredHang.sentence,
        StoredHang.since,
        StoredHang.ranks,
        StoredHang.waiting,
        StoredHang.culprits,
        StoredHang.confidence,
    ).join(Job, Job.id == StoredHang.job_id)
