"""Tables of what is noticed between sessions: in pulses, and of hangs.

Of a pulse the kept state of each attempt's detection, what it noticed, its rows as blocks, and
what minutes and hours come to; of a hang the verdict, and what the files say that it was made of.
"""

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
    """Where the detection of an attempt of a job stands.

    Who holds the claim alone writes it, in one transaction with what follows from it.
    """

    __tablename__ = "pulse_state"
    __table_args__ = (belongs_to("job_id", "job.id"),)

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # when rows were taken last
    advanced_at: Mapped[datetime | None]
    # app.analysis.pulse.detector.Detector; null until rows were taken
    state: Mapped[bytes | None]
    rows: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    # rows, columns and bodies that were left out, by code
    counts: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=text("'{}'"))
    # hosts, or ranks without one, whose clocks are wrong, and by how many seconds
    clocks: Mapped[dict[str, float]] = mapped_column(JSONB, server_default=text("'{}'"))
    # waited for the rank that computes longest against its peers, in all whole steps
    lost_gpu_s: Mapped[float] = mapped_column(Double, server_default=text("0"))
    # the worker that takes rows, and until when the others leave them alone
    claim_token: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    lease_until: Mapped[datetime | None]
    # workers that began since rows were taken last
    tries: Mapped[int] = mapped_column(server_default=text("0"))
    # app.analysis.pulse.step_pace.Pace; null until rows were taken
    pace: Mapped[bytes | None]
    # app.analysis.pulse.packing.Places; null until its ranks are known
    places: Mapped[bytes | None]
    # app.analysis.pulse.gpu_readings: the last reading of each rank's GPU; null until there is one
    hardware: Mapped[bytes | None]


class PulseNotice(OfProject, Base):
    """What was noticed in an attempt of a job, in its last words."""

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
    # counts those of an attempt
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
    # by the server's clock; null while it goes on
    cleared_at: Mapped[datetime | None]
    # when it fires without a session; null of those of the version before
    fires_at: Mapped[datetime | None]
    # the request that was made of it, or was open
    request_id: Mapped[int | None] = mapped_column(BigInteger)
    # what a session says of it, which one, and the cause that it names
    outcome: Mapped[Outcome | None] = mapped_column(StateColumn(Outcome))
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    cause: Mapped[str] = mapped_column(server_default=text("''"))
    # a step before it began, while it goes on, and since it is over
    baseline_ns: Mapped[float | None] = mapped_column(Double)
    step_ns: Mapped[float | None] = mapped_column(Double)
    after_ns: Mapped[float | None] = mapped_column(Double)
    # by which all ranks took longer, together
    lost_ns: Mapped[float] = mapped_column(Double, server_default=text("0"))


class RecordingRequest(OfProject, Base):
    """A session that an attempt of a job is to record; open until it came, or `until`.

    Whoever asks has the lock of the job's group of alerts: of an attempt one is open at a time.
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
    # the person; null where a notice asks
    asked_by: Mapped[str | None]
    asked_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    until: Mapped[datetime]
    # how long these steps take
    window_s: Mapped[float] = mapped_column(Double)
    # when an answer carried it last, and how many did
    handed_at: Mapped[datetime | None]
    handed: Mapped[int] = mapped_column(server_default=text("0"))
    # that came of it
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
    # that of the median rank's end of the step
    minute: Mapped[datetime]
    # counts those of a minute; only the last one grows
    part: Mapped[int]
    rows: Mapped[int]
    # app.analysis.pulse.packing
    body: Mapped[bytes]


class PulseSpan(OfProject, Base):
    """What a minute or an hour of an attempt comes to."""

    __tablename__ = "pulse_span"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("job_id", "seconds", "start", "attempt"),
        Index("ix_pulse_span_start", "start"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    # its length: 60 or 3,600
    seconds: Mapped[int]
    start: Mapped[datetime]
    ranks: Mapped[int]
    steps: Mapped[int]
    # of all its steps, each by its median rank
    busy_s: Mapped[float] = mapped_column(Double)
    step_median_s: Mapped[float] = mapped_column(Double)
    step_p95_s: Mapped[float] = mapped_column(Double)
    # of any rank
    step_worst_s: Mapped[float] = mapped_column(Double)
    # of all ranks and steps
    compute_median_s: Mapped[float] = mapped_column(Double)
    compute_p95_s: Mapped[float] = mapped_column(Double)
    tokens: Mapped[int] = mapped_column(BigInteger)
    # waiting for the rank that computes longest against its peers
    lost_gpu_s: Mapped[float] = mapped_column(Double)
    # the ranks that compute longest against their peers, and how many times as long
    worst_ranks: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    worst_ratios: Mapped[list[float]] = mapped_column(ARRAY(Double))
    # where they are: an empty text where that is not known, and the place among the host's ranks
    worst_hosts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    worst_gpus: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    # app.analysis.pulse.rollups
    sums: Mapped[bytes]
