"""Tables of pulses: detection state, notices, requests for sessions, blocks of rows, and spans."""

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
    Needs,
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
    # when rows of the attempt were last processed
    advanced_at: Mapped[datetime | None]
    # serialized app.analysis.pulse.detector.Detector; null before the first rows
    state: Mapped[bytes | None]
    rows: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    # number of dropped rows, columns and bodies by code
    counts: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=text("'{}'"))
    # errors of wrong clocks in seconds, by host, or by rank if the host is unknown
    clocks: Mapped[dict[str, float]] = mapped_column(JSONB, server_default=text("'{}'"))
    # GPU-seconds in which ranks waited for the rank with the longest computing against its peers
    lost_gpu_s: Mapped[float] = mapped_column(Double, server_default=text("0"))
    # token of the worker that holds the claim, and the end of the claim's lease
    claim_token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    lease_until: Mapped[datetime | None]
    # number of claims since rows were last processed: more than 1 after failures
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    # serialized app.analysis.pulse.step_pace.Pace; null before the first rows
    pace: Mapped[bytes | None]
    # serialized app.analysis.pulse.packing.Places; null before the first whole step
    places: Mapped[bytes | None]
    # packed app.analysis.pulse.gpu_readings: the last reading of each rank's GPU; null without any
    hardware: Mapped[bytes | None]
    # generation of the formats of the state and of the waiting bodies
    needs: Mapped[Needs]


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
    # number of the notice within its attempt
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[NoticeKind] = mapped_column(StateColumn(NoticeKind))
    ranks: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    hosts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    factor: Mapped[float | None] = mapped_column(Double)
    from_step: Mapped[int] = mapped_column(BigInteger)
    noticed_step: Mapped[int] = mapped_column(BigInteger)
    # time at which the slowdown was noticed, by the clock of the rank's host
    noticed_time_ns: Mapped[int] = mapped_column(BigInteger)
    noticed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    cleared_step: Mapped[int | None] = mapped_column(BigInteger)
    evidence: Mapped[Evidence] = mapped_column(EVIDENCE)
    # time at which the notice was cleared, by the server's clock; null while open
    cleared_at: Mapped[datetime | None]
    # when the notice's alert fires even without a session; null before the first evaluation
    fires_at: Mapped[datetime | None]
    # the request for a session that the notice made, or that was already open
    request_id: Mapped[int | None] = mapped_column(BigInteger)
    # whether a session confirms the notice, which session, and the cause that this session names
    outcome: Mapped[Outcome | None] = mapped_column(StateColumn(Outcome))
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    cause: Mapped[str] = mapped_column(server_default=text("''"))
    # mean step times before, during and after the slowdown
    baseline_ns: Mapped[float | None] = mapped_column(Double)
    step_ns: Mapped[float | None] = mapped_column(Double)
    after_ns: Mapped[float | None] = mapped_column(Double)
    # GPU-nanoseconds that all ranks lost together
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
    # whether every rank records, with the collectives of its groups
    every_rank: Mapped[bool] = mapped_column(server_default=text("false"))
    reason: Mapped[str]
    # name of the person who made the request; null if a notice or a session made it
    asked_by: Mapped[str | None]
    asked_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    until: Mapped[datetime]
    # expected duration of the requested steps
    window_s: Mapped[float] = mapped_column(Double)
    # when an answer last carried the request, and the number of answers that carried it
    handed_at: Mapped[datetime | None]
    handed: Mapped[int] = mapped_column(server_default=text("0"))
    # the session that the job recorded for the request
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)


class PulseBlock(OfProject, Base):
    """Rows of a minute of an attempt: whole steps and beats, each stored once."""

    __tablename__ = "pulse_block"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("job_id", "attempt", "minute", "part"),
        # retention deletes rows by this index
        Index("ix_pulse_block_minute", "minute"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    # the minute in which the median rank ended the steps
    minute: Mapped[datetime]
    # number of the block within its minute; only the last one grows
    part: Mapped[int]
    rows: Mapped[int]
    # rows, packed by app.analysis.pulse.packing
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
    # length of the span: 60 or 3,600
    seconds: Mapped[int]
    start: Mapped[datetime]
    ranks: Mapped[int]
    steps: Mapped[int]
    # sum over all steps of the median step time over the ranks
    busy_s: Mapped[float] = mapped_column(Double)
    step_median_s: Mapped[float] = mapped_column(Double)
    step_p95_s: Mapped[float] = mapped_column(Double)
    # longest step time of any rank
    step_worst_s: Mapped[float] = mapped_column(Double)
    # computing over all ranks and steps, without garbage collection
    compute_median_s: Mapped[float] = mapped_column(Double)
    compute_p95_s: Mapped[float] = mapped_column(Double)
    tokens: Mapped[int] = mapped_column(BigInteger)
    # GPU-seconds in which ranks waited for the rank with the longest computing against its peers
    lost_gpu_s: Mapped[float] = mapped_column(Double)
    # the slowest ranks, and the ratio of their computing to that of their peers
    worst_ranks: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    worst_ratios: Mapped[list[float]] = mapped_column(ARRAY(Double))
    # hosts of the slowest ranks (empty if unknown), and index of each rank among its host's ranks
    worst_hosts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    worst_gpus: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    # sums packed by app.analysis.pulse.rollups, to which later rows are added
    sums: Mapped[bytes]
