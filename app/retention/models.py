"""Retention rules of a project, and the tables of rules, usage and blobs to delete."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError
from sqlalchemy import BigInteger, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.errors import PacelineError
from app.platform.database.columns import Base, JsonDocument, OfProject, in_project
from app.platform.validation import field_faults

# A hundred years.
_MAX_DAYS: Final = 36_525
# The database refuses to delete entries of the audit log that are younger.
AUDIT_DAYS: Final = 730

Bytes = Annotated[int, Field(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a kind is kept: the oldest goes first."""

    # What is older goes; None: at any age it stays.
    days: Annotated[int, Field(ge=1, le=_MAX_DAYS)] | None = None
    bytes: Bytes | None = None  # what is over it goes; None: however much there is


@dataclass(frozen=True, slots=True)
class KeepRows:
    """How much is kept of what comes every second: parts of a day count."""

    # days, bytes: as of `Keep`
    days: Annotated[float, Field(ge=1 / 24, le=_MAX_DAYS, allow_inf_nan=False)] | None = 0.25
    bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class KeepAudit:
    """How much of the audit log is kept; nothing of the last two years goes."""

    # days, bytes: as of `Keep`
    days: Annotated[int, Field(ge=AUDIT_DAYS, le=_MAX_DAYS)] | None = AUDIT_DAYS
    bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What a project keeps, by kind; these are also what one keeps without changes."""

    # traces, heatmaps, reports: of sessions, counted from when these were received
    traces: Keep = Keep()
    heatmaps: Keep = Keep()
    reports: Keep = Keep()
    hangs: Keep = Keep(days=365)
    pulse_rows: KeepRows = KeepRows()  # single steps; those around a notice stay with its spans
    pulse_spans: Keep = Keep(days=90)  # minutes and hours of pulses
    probes: Keep = Keep(days=180)  # of each host the latest stays
    task_runs: Keep = Keep(days=90)  # work that is over
    # Messages that are over; of each channel and job the last stays.
    deliveries: Keep = Keep(days=30)
    audit: KeepAudit = KeepAudit()


class InvalidRetentionError(PacelineError):
    """Invalid retention rules; the faults name the fields."""

    code = "retention.invalid"


_RULES: Final = TypeAdapter(RetentionRules)


def retention_rules(document: object) -> RetentionRules:
    """Validate retention rules.

    Raises
    ------
    InvalidRetentionError
        With the path of each fault: ``traces.days``.
    """
    try:
        return _RULES.validate_python(document)
    except ValidationError as error:
        faults = field_faults(error.errors())
        named = ", ".join(fault.column or "?" for fault in faults)
        raise InvalidRetentionError(f"Not valid: {named}.", faults=faults) from error


RETENTION: Final = JsonDocument(TypeAdapter(RetentionRules))


class Retention(OfProject, Base):
    """What a project keeps; one without a row keeps what `RetentionRules` says by itself."""

    __tablename__ = "retention"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rules: Mapped[RetentionRules] = mapped_column(RETENTION)
    # by the sweeper, to the end: it looks every few minutes
    looked_at: Mapped[datetime | None]


class DoomedBlob(OfProject, Base):
    """A blob that nothing refers to any more; the sweeper takes it away part by part."""

    __tablename__ = "doomed_blob"
    __table_args__ = (in_project(),)

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)


class ProjectUsage(OfProject, Base):
    """Running sums of one project; a project without a row has used nothing.

    Whoever stores something of a project adds to its row last in its transaction: from then on
    others of the project wait for the commit, so a quota is kept exactly.
    """

    __tablename__ = "project_usage"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # the hour that `hour_sessions` counts
    hour: Mapped[datetime]
    hour_sessions: Mapped[int]
    # of all its sessions that are there
    bytes: Mapped[int] = mapped_column(BigInteger)
    operations: Mapped[int] = mapped_column(BigInteger)
