"""Tables of this installation as a whole: its worker processes, and how long they take."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.models.base import Base


class WorkerHeartbeat(Base):
    """A living worker process; /readyz and the dashboard read it."""

    __tablename__ = "worker_heartbeat"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    queues: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    seen_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class AnalysisDuration(Base):
    """Analyses of a range of durations; running sums, which no retention lowers."""

    __tablename__ = "analysis_duration"

    # the longest duration of the range
    limit_s: Mapped[float] = mapped_column(primary_key=True, autoincrement=False)
    analyses: Mapped[int] = mapped_column(BigInteger)
    total_s: Mapped[float]
