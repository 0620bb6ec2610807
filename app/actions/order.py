"""What is to be done to a machine, and why: the types that kinds of actions and callers share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.alerts.outbound import Outbound


@dataclass(frozen=True, slots=True)
class Order:
    """An action on one machine."""

    id: UUID  # the same on every try
    at: datetime  # when it was ordered, or released
    node: str
    gpus: tuple[str, ...]  # at fault: UUIDs where they are known, else their names there
    cause: str
    cause_title: str
    confidence: float | None
    sessions: int  # that blame it
    lost_each_hour: float | None  # GPU-hours
    job: str
    incident: UUID
    evidence_url: str  # absolute
    source_url: str  # of the project's pages
    confirmed: bool  # whether every limit let it pass, so that no person had to


@dataclass(frozen=True, slots=True)
class HangOrder:
    """An action that tells of a job that hangs; there is nothing to take back."""

    id: UUID  # the same on every try
    at: datetime  # when it was ordered
    job: str
    hang: UUID
    began: datetime
    ranks: int
    waiting: int  # ranks that wait for others
    confidence: float
    sentence: str
    culprits: str  # ranks with host and GPU
    remedy: str
    incident: UUID
    evidence_url: str  # absolute
    source_url: str  # of the project's pages


@dataclass(frozen=True, slots=True)
class Means:
    """What an attempt may use."""

    outbound: Outbound  # guarded; over within one deadline
    scontrol: str | None = None  # the operator's path to it; None where Slurm is not to be touched
