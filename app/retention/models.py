"""Retention rules of a project; tables of rules, of usage, and of blobs to delete."""

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

# Longest retention time: a hundred years.
_MAX_DAYS: Final = 36_525
# A trigger of the database refuses to delete entries of the audit log younger than this, in days.
AUDIT_DAYS: Final = 730

Bytes = Annotated[int, Field(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class Keep:
    """Limits of a kind's age and size; the oldest items are deleted first."""

    # age in days from which items are deleted; None: no limit of age
    days: Annotated[int, Field(ge=1, le=_MAX_DAYS)] | None = None
    bytes: Bytes | None = None  # what is over it goes; None: however much there is


@dataclass(frozen=True, slots=True)
class KeepRows:
    """Limits for rows that arrive every second; `days` may be a fraction."""

    # days, bytes: as in `Keep`
    days: Annotated[float, Field(ge=1 / 24, le=_MAX_DAYS, allow_inf_nan=False)] | None = 0.25
    bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class KeepAudit:
    """Limits for the audit log; entries of the last two years are always kept."""

    # days, bytes: as in `Keep`
    days: Annotated[int, Field(ge=AUDIT_DAYS, le=_MAX_DAYS)] | None = AUDIT_DAYS
    bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Retention rules of a project, by kind; the defaults apply to a project without changes."""

    # traces, heatmaps, reports: age counts from the reception of the session
    traces: Keep = Keep()
    heatmaps: Keep = Keep()
    reports: Keep = Keep()
    hangs: Keep = Keep(days=365)
    pulse_rows: KeepRows = KeepRows()  # single steps; those around a notice stay with its spans
    pulse_spans: Keep = Keep(days=90)  # minutes and hours of pulses
    probes: Keep = Keep(days=180)  # of each host the latest stays
    task_runs: Keep = Keep(days=90)  # work that is over
    # finished deliveries; the last delivery to each channel about each job stays
    deliveries: Keep = Keep(days=30)
    audit: KeepAudit = KeepAudit()


class InvalidRetentionError(PacelineError):
    """Invalid retention rules; the faults name the invalid fields."""

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
    """Stored retention rules of a project; a project without a row has the default rules."""

    __tablename__ = "retention"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rules: Mapped[RetentionRules] = mapped_column(RETENTION)
    # time of the sweeper's last complete pass over the project; null: the next pass includes the
    # project
    looked_at: Mapped[datetime | None]


class DoomedBlob(OfProject, Base):
    """A blob without references; the sweeper deletes it part by part."""

    __tablename__ = "doomed_blob"
    __table_args__ = (in_project(),)

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)


class ProjectUsage(OfProject, Base):
    """Running sums of one project; a project without a row has used nothing.

    A transaction that stores data of a project adds to the project's row as its last statement:
    other such transactions of the project wait for its commit, so that a quota is exact.
    """

    __tablename__ = "project_usage"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # the hour in which `hour_sessions` counts received sessions
    hour: Mapped[datetime]
    hour_sessions: Mapped[int]
    # bytes of all stored sessions of the project
    bytes: Mapped[int] = mapped_column(BigInteger)
    operations: Mapped[int] = mapped_column(BigInteger)
