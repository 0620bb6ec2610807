"""Tables of the installation: heartbeats of workers, and counts of analyses by duration."""

from __future__ import annotations

import bisect
import math
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import BigInteger, Uuid, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from app.platform.database.columns import Base
from app.platform.database.unit_of_work import Reads, UnitOfWork


class WorkerHeartbeat(Base):
    """The last heartbeat of a worker process; /readyz and the dashboard read it."""

    __tablename__ = "worker_heartbeat"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    queues: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    seen_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class AnalysisDuration(Base):
    """Number of analyses in one range of durations; retention does not lower it."""

    __tablename__ = "analysis_duration"

    # upper limit of the range of durations
    limit_s: Mapped[float] = mapped_column(primary_key=True, autoincrement=False)
    analyses: Mapped[int] = mapped_column(BigInteger)
    total_s: Mapped[float]


# Upper limits of the ranges: an analysis counts in the first range whose limit it does not exceed.
LIMITS_S: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, math.inf)


@dataclass(frozen=True, slots=True)
class DurationHistogram:
    """Cumulative histogram of the durations of analyses."""

    # pairs of upper limit in seconds and number of analyses up to it, ascending; the last limit is
    # infinite
    at_most: tuple[tuple[float, int], ...]
    total_s: float


def count_duration(tx: UnitOfWork, duration_s: float) -> None:
    """Count an analysis; call it last in a transaction, as other workers wait for the row lock."""
    limit_s = LIMITS_S[bisect.bisect_left(LIMITS_S, duration_s)]
    counted = insert(AnalysisDuration).values(limit_s=limit_s, analyses=1, total_s=duration_s)
    tx.session.execute(
        counted.on_conflict_do_update(
            index_elements=[AnalysisDuration.limit_s],
            set_={
                "analyses": AnalysisDuration.analyses + 1,
                "total_s": AnalysisDuration.total_s + counted.excluded.total_s,
            },
        )
    )


def analysis_durations(tx: Reads) -> DurationHistogram:
    """Return the histogram of all analyses since the database was created."""
    rows = tx.session.execute(
        select(AnalysisDuration.limit_s, AnalysisDuration.analyses, AnalysisDuration.total_s)
    ).all()
    limits_s = sorted({*LIMITS_S, *(row.limit_s for row in rows)})
    return DurationHistogram(
        at_most=tuple(
            (limit_s, sum(row.analyses for row in rows if row.limit_s <= limit_s))
            for limit_s in limits_s
        ),
        total_s=math.fsum(row.total_s for row in rows),
    )
