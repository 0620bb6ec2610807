"""Tables of hosts: readings of sessions, sums by week, places of GPUs, repairs and probes."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Double, Identity, Index, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.incidents.models.facts import HangFacts
from app.platform.database.columns import Base, DumpedDocument, OfProject, belongs_to, in_project

HANG_FACTS: Final = DumpedDocument(TypeAdapter(HangFacts))


class HostReading(OfProject, Base):
    """Measurements of a host in a session: an `app.hosts.readings.Reading`."""

    __tablename__ = "host_reading"
    __table_args__ = (
        belongs_to("session_id", "session.id"),
        belongs_to("job_id", "job.id"),
        Index("ix_host_reading_project_id_host_received_at", "project_id", "host", "received_at"),
        # The list of hosts sums all readings of a period from this index alone, without reading the
        # rows; costs are computed for a few readings only.
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
    # time at which the session was received
    received_at: Mapped[datetime]
    # number of the job's ranks on the host
    ranks: Mapped[int]
    workers: Mapped[int]
    slowdown: Mapped[float]
    computing: Mapped[float | None]
    # the leading cause that names a worker on the host, and the cost of all such causes, GPU-hours
    # per hour
    cause: Mapped[str | None]
    # the leading cause that names a worker on the host and does not blame machines
    other_cause: Mapped[str | None]
    lost_each_hour: Mapped[float]
    # total time of the analyzed steps, seconds
    measured_s: Mapped[float]
    gpus: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    # whether the host's name may be a container's
    guessed: Mapped[bool] = mapped_column(server_default=text("false"))
    # names that schedulers have for the session's processes on the host, as the sender claims:
    # ``slurm/81``, ``kubernetes/ml/llama-0``; null without any
    launched_as: Mapped[list[str] | None] = mapped_column(JSONB(none_as_null=True))


class HostWeek(OfProject, Base):
    """Sums of a host's readings in a job over the week that begins at `week`.

    Triggers on `host_reading` maintain this table; the program never writes it.
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
    # maximum over the sessions
    ranks: Mapped[int]
    slowdown: Mapped[float]
    computing: Mapped[float | None]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]


class GpuPlace(OfProject, Base):
    """A host on which a GPU was seen; the latest row of a GPU is its current place."""

    __tablename__ = "gpu_place"
    __table_args__ = (
        in_project(),
        Index("ix_gpu_place_project_id_host", "project_id", "host"),
    )

    # UUID of the GPU
    gpu: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    # whether the host's name may be a container's
    guessed: Mapped[bool]
    # times of the first and the last session with the GPU on the host
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class HostRepair(OfProject, Base):
    """A repair of a host or of one of its GPUs."""

    __tablename__ = "host_repair"
    __table_args__ = (
        in_project(),
        Index("ix_host_repair_project_id_host_at", "project_id", "host", "at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    host: Mapped[str]
    # name of the GPU in the metadata of sessions; null: the repair concerns the whole host
    gpu: Mapped[str | None]
    what: Mapped[str]
    by: Mapped[str]
    at: Mapped[datetime]
    noted_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class HostProbe(OfProject, Base):
    """Measurements of a device by a probe, while no job ran on the host."""

    __tablename__ = "host_probe"
    __table_args__ = (
        in_project(),
        Index("ix_host_probe_project_id_host_at", "project_id", "host", "at"),
        Index("ix_host_probe_project_id_model_at", "project_id", "model", "at"),
    )

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # id of the probe, chosen by the client, so that a repeated request stores nothing
    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # number of the device within the probe
    device: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    host: Mapped[str]
    # whether the host's name may be a container's
    guessed: Mapped[bool]
    at: Mapped[datetime]
    # number of the device on the host, its model and its UUID
    index: Mapped[str]
    model: Mapped[str]
    gpu: Mapped[str | None]
    # values of app.hosts.probes.Measure; null if the device could not be measured
    matmul_tflops: Mapped[float | None] = mapped_column(Double)
    memory_copy_gbs: Mapped[float | None] = mapped_column(Double)
    host_to_device_gbs: Mapped[float | None] = mapped_column(Double)
    device_to_host_gbs: Mapped[float | None] = mapped_column(Double)
    all_reduce_gbs: Mapped[float | None] = mapped_column(Double)
    # reason why the device could not be measured
    fault: Mapped[str | None]
