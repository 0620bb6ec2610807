"""Tables of pulses: state of detection, notices, requests for sessions, rows, and spans."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Double,
    Identity,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.analysis.pulse.notices import Evidence, NoticeKind
from app.incidents.models.facts import Outcome
from app.platform.database.columns import (
    Base,
    JsonDocument,
    OfProject,
    StateColumn,
    belongs_to,
    one_of,
)

EVIDENCE: Final = JsonDocument(TypeAdapter(Evidence))


class PulseState(OfProject, Base):
    """The state of detection of an attempt of a job.

    Only the holder of the claim writes it, in one transaction with the results.
    """

    __tablename__ = "pulse_state"
    __table_args__ = (belongs_to("job_id", "job.id"),)

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # when rows were last processed
    advanced_at: Mapped[datetime | None]
    # app.analysis.pulse.detector.Detector; null before the first rows
    state: Mapped[bytes | None]
    rows: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    # dropped rows, columns and bodies by code
    counts: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=text("'{}'"))
    # errors of wrong clocks in seconds by host, or by rank without a host
    clocks: Mapped[dict[str, float]] = mapped_column(JSONB, server_default=text("'{}'"))
    # GPU-seconds spent waiting for the rank that computes longest against its peers
    lost_gpu_s: Mapped[float] = mapped_column(Double, server_default=text("0"))
    # claim of a worker, and the end of its lease
    claim_token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    lease_until: Mapped[datetime | None]
    # claims since rows were last processed
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    # app.analysis.pulse.step_pace.Pace; null before the first rows
    pace: Mapped[bytes | None]
    # app.analysis.pulse.packing.Places; null before the first whole step
    places: Mapped[bytes | None]
    # app.analysis.pulse.gpu_readings: the last reading of each rank's GPU; null without any
    hardware: Mapped[bytes | None]


class PulseNotice(OfProject, Base):
    """A notice of an attempt of a job, in its latest version."""

    __tablename__ = "pulse_notice"
    __table_args__ = (
        one_of("kind", NoticeKind),
        one_of("outcome", Outcome),
        belongs_to("job_id", "job.id"),
        Index("ix_pulse_notice_job_id_noticed_at", "job_id", "noticed_at"),
        Index("ix_pulse_notice_open", "job_id", postgresql_where=text("cleared_at IS NULL")),
    )

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # of the notice within its attempt
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[NoticeKind] = mapped_column(StateColumn(NoticeKind))
    ranks: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    hosts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    factor: Mapped[float | None] = mapped_column(Double)
    from_step: Mapped[int] = mapped_column(BigInteger)
    noticed_step: Mapped[int] = mapped_column(BigInteger)
    # by the clock of its host
    noticed_time_ns: Mapped[int] = mapped_column(BigInteger)
    noticed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    cleared_step: Mapped[int | None] = mapped_column(BigInteger)
    evidence: Mapped[Evidence] = mapped_column(EVIDENCE)
    # by the server's clock; null while open
    cleared_at: Mapped[datetime | None]
    # when its alert fires without a session; null before the first evaluation
    fires_at: Mapped[datetime | None]
    # the request for a session that it made, or that was open then
    request_id: Mapped[int | None] = mapped_column(BigInteger)
    # whether a session confirms it, which session, and the cause that the session names
    outcome: Mapped[Outcome | None] = mapped_column(StateColumn(Outcome))
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    cause: Mapped[str] = mapped_column(server_default=text("''"))
    # mean step time before the slowdown, during it, and after it
    baseline_ns: Mapped[float | None] = mapped_column(Double)
    step_ns: Mapped[float | None] = mapped_column(Double)
    after_ns: Mapped[float | None] = mapped_column(Double)
    # GPU-nanoseconds lost by all ranks
    lost_ns: Mapped[float] = mapped_column(Double, server_default=text("0"))


class RecordingRequest(OfProject, Base):
    """A request for a session of an attempt; open until the session arrives, or `until`.

    A requester locks the job's group of alerts: at most one request of an attempt is open.
    """

    __tablename__ = "recording_request"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        Index("ix_recording_request_job_id_asked_at", "job_id", "asked_at"),
        Index(
            "ix_recording_request_open",
            "job_id",
            "attempt",
            postgresql_where=text("session_id IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    steps: Mapped[int]
    reason: Mapped[str]
    # the person; null for a request of a notice
    asked_by: Mapped[str | None]
    asked_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    until: Mapped[datetime]
    # expected duration of the steps
    window_s: Mapped[float] = mapped_column(Double)
    # when an answer last carried it, and how many answers did
    handed_at: Mapped[datetime | None]
    handed: Mapped[int] = mapped_column(server_default=text("0"))
    # the session that answered it
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)


class PulseBlock(OfProject, Base):
    """Rows of a minute of an attempt: whole steps and beats, none twice."""

    __tablename__ = "pulse_block"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("job_id", "attempt", "minute", "part"),
        # what retention looks for
        Index("ix_pulse_block_minute", "minute"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    # in which the median rank ended the steps
    minute: Mapped[datetime]
    # number of the block within its minute; only the last one grows
    part: Mapped[int]
    rows: Mapped[int]
    # app.analysis.pulse.packing
    body: Mapped[bytes]


class PulseSpan(OfProject, Base):
    """Statistics of a minute or an hour of an attempt."""

    __tablename__ = "pulse_span"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("job_id", "seconds", "start", "attempt"),
        Index("ix_pulse_span_start", "start"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    # length: 60 or 3,600
    seconds: Mapped[int]
    start: Mapped[datetime]
    ranks: Mapped[int]
    steps: Mapped[int]
    # sum of the times of the median rank over all steps
    busy_s: Mapped[float] = mapped_column(Double)
    step_median_s: Mapped[float] = mapped_column(Double)
    step_p95_s: Mapped[float] = mapped_column(Double)
    # longest step of a rank
    step_worst_s: Mapped[float] = mapped_column(Double)
    # over all ranks and steps
    compute_median_s: Mapped[float] = mapped_column(Double)
    compute_p95_s: Mapped[float] = mapped_column(Double)
    tokens: Mapped[int] = mapped_column(BigInteger)
    # GPU-seconds spent waiting for the rank that computes longest against its peers
    lost_gpu_s: Mapped[float] = mapped_column(Double)
    # the slowest ranks, and their computing as a multiple of their peers'
    worst_ranks: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    worst_ratios: Mapped[list[float]] = mapped_column(ARRAY(Double))
    # their hosts (empty if unknown), and their index among the ranks of the host
    worst_hosts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    worst_gpus: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    # app.analysis.pulse.rollups
    sums: Mapped[bytes]
