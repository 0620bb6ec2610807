"""Table of plans: each plan's request, state and result."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Index, UniqueConstraint, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.platform.database.columns import Base, OfProject, StateColumn, in_project, one_of
from app.platform.database.states import PlanState


class Plan(OfProject, Base):
    """Plan: a specification, and the pipeline template found for it."""

    __tablename__ = "plan"
    __table_args__ = (
        one_of("state", PlanState),
        in_project(),
        UniqueConstraint("project_id", "content_sha256"),
        # Only plans in the state ``planned`` have a result; pages rely on this constraint.
        CheckConstraint("(state = 'planned') = (result_blob IS NOT NULL)", name="result"),
        Index("ix_plan_project_id_created_at_id", "project_id", "created_at", "id"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # Hash of the whole request: equal requests share a plan.
    content_sha256: Mapped[bytes]
    name: Mapped[str | None]
    method: Mapped[str]
    objective: Mapped[str]
    time_limit_s: Mapped[float]
    # The specification as submitted; its keys are text.
    spec: Mapped[dict[str, Any]]
    layers: Mapped[int]
    gpus: Mapped[int]

    state: Mapped[PlanState] = mapped_column(StateColumn(PlanState))
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    state_changed_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # Proven optimality gap of the search so far, as a fraction; null until there is a first
    # template.
    gap: Mapped[float | None]

    # Reason why there is no template: a stable code, a sentence, and the nearest feasible changes.
    reason_code: Mapped[str | None]
    reason: Mapped[str | None]
    reason_detail: Mapped[dict[str, Any] | None]

    # The document `paceline.plan/1` with its timeline, as zstd-compressed JSON in blob_part. Lists
    # read the outline instead.
    result_blob: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    outline: Mapped[dict[str, Any] | None] = mapped_column("headline")
