"""Tables of hosts: what each session says of each, what that adds up to, and what was repaired."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Identity, Index, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.models.base import Base, OfProject, belongs_to, in_project


class HostReading(OfProject, Base):
    """What a session with a verdict says of a host: an `app.services.hosts.readings.Reading`."""

    __tablename__ = "host_reading"
    __table_args__ = (
        belongs_to("session_id", "session.id"),
        belongs_to("job_id", "job.id"),
        Index("ix_host_reading_project_id_host_received_at", "project_id", "host", "received_at"),
        # the list of hosts adds up all of a time, without their rows; few are priced
        Index(
            "ix_host_reading_of_all",
            "project_id",
            "received_at",
            postgresql_include=["host", "job_id", "ranks", "slowdown", "computing"],
        ),
        Index(
            "ix_host_reading_of_slow",
            "project_id",
            "received_at",
            postgresql_where=text("cause IS NOT NULL"),
        ),
        Index("ix_host_reading_job_id", "job_id"),
    )

    session_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    # of the session
    received_at: Mapped[datetime]
    # of the job there
    ranks: Mapped[int]
    workers: Mapped[int]
    slowdown: Mapped[float]
    computing: Mapped[float | None]
    # the leading cause that names a worker there, and what these cost, GPU-hours each hour
    cause: Mapped[str | None]
    lost_each_hour: Mapped[float]
    # how long the analyzed steps took, seconds
    measured_s: Mapped[float]
    gpus: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    # whether the host's name may be that of a container
    guessed: Mapped[bool] = mapped_column(server_default=text("false"))


class HostWeek(OfProject, Base):
    """What the readings of a host in a job add up to in a week, which `week` begins.

    No code writes it: triggers on `host_reading` keep it, whatever adds readings or takes them
    away.
    """

    __tablename__ = "host_week"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        Index("ix_host_week_project_id_week", "project_id", "week"),
    )

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    week: Mapped[datetime] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    sessions: Mapped[int]
    # the largest of each
    ranks: Mapped[int]
    slowdown: Mapped[float]
    computing: Mapped[float | None]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]


class GpuPlace(OfProject, Base):
    """A host on which a GPU was seen; the latest one is where it is."""

    __tablename__ = "gpu_place"
    __table_args__ = (
        in_project(),
        Index("ix_gpu_place_project_id_host", "project_id", "host"),
    )

    # its UUID
    gpu: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    # whether the host's name may be that of a container
    guessed: Mapped[bool]
    # of the sessions
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class HostRepair(OfProject, Base):
    """A repair of a host, or to one of its GPUs."""

    __tablename__ = "host_repair"
    __table_args__ = (
        in_project(),
        Index("ix_host_repair_project_id_host_at", "project_id", "host", "at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    host: Mapped[str]
    # as the metadata of sessions name it; null where it was the whole host
    gpu: Mapped[str | None]
    what: Mapped[str]
    by: Mapped[str]
    at: Mapped[datetime]
    noted_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
