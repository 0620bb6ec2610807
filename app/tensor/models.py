"""Tables of tensor-parallel groups: reports of jobs, their plans, and switches."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Double,
    Identity,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.analysis.mitigation.tensor.document import RankShare
from app.analysis.mitigation.tensor.group import Costs
from app.analysis.mitigation.tensor.prediction import Sizes
from app.platform.database.columns import (
    Base,
    JsonDocument,
    OfProject,
    StateColumn,
    belongs_to,
    one_of,
)
from app.platform.database.states import TensorMode, TensorPlanState

_COSTS: Final = JsonDocument(TypeAdapter(Costs))
_SIZES: Final = JsonDocument(TypeAdapter(tuple[Sizes, ...]))
_RANKS: Final = JsonDocument(TypeAdapter(tuple[RankShare, ...]))


class TensorGroup(OfProject, Base):
    """A tensor-parallel group of one attempt of a job, and the state of its control loop."""

    __tablename__ = "tensor_group"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("project_id", "id"),
        UniqueConstraint("job_id", "name", "attempt"),
        CheckConstraint("world_size >= 2", name="world_size"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

    # bound for the attempt by the first report
    world_size: Mapped[int]
    columns: Mapped[int]
    unit: Mapped[int]
    # as the latest report says
    max_gamma: Mapped[float] = mapped_column(Double)
    apply: Mapped[bool] = mapped_column(Boolean)
    methods: Mapped[list[str]] = mapped_column(ARRAY(Text))
    costs: Mapped[Costs | None] = mapped_column(_COSTS)
    sizes: Mapped[tuple[Sizes, ...] | None] = mapped_column(_SIZES)
    ranks: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))
    hosts: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    # number of reports received; last step of the latest one
    reports: Mapped[int] = mapped_column(server_default=text("0"))
    step: Mapped[int | None] = mapped_column(BigInteger)
    reported_at: Mapped[datetime | None]

    # app.analysis.mitigation.tensor.control.Streak
    over: Mapped[int] = mapped_column(server_default=text("0"))
    calm: Mapped[int] = mapped_column(server_default=text("0"))
    drifted: Mapped[int] = mapped_column(server_default=text("0"))
    missed: Mapped[int] = mapped_column(server_default=text("0"))
    rung: Mapped[int] = mapped_column(server_default=text("0"))
    since_step: Mapped[int | None] = mapped_column(BigInteger)
    replace_node: Mapped[bool] = mapped_column(server_default=text("false"))
    # methods that ranks refused in this attempt
    refused: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    # of the newest plan; 0 before the first
    version: Mapped[int] = mapped_column(server_default=text("0"))


class TensorPlan(OfProject, Base):
    """A version of a group's plan; the method ``none`` withdraws the one before."""

    __tablename__ = "tensor_plan"
    __table_args__ = (
        one_of("state", TensorPlanState),
        belongs_to("group_id", "tensor_group.id"),
    )

    group_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[TensorPlanState] = mapped_column(StateColumn(TensorPlanState))
    method: Mapped[str]
    criterion: Mapped[str | None]
    # whether the job and the switch allowed its application
    apply: Mapped[bool] = mapped_column(Boolean)
    budget: Mapped[float] = mapped_column(Double)
    ranks: Mapped[tuple[RankShare, ...]] = mapped_column(_RANKS)
    # T of the slowest rank: without a plan, and as predicted, s
    slowest_time_s: Mapped[float] = mapped_column(Double)
    fastest_time_s: Mapped[float] = mapped_column(Double)
    predicted_time_s: Mapped[float] = mapped_column(Double)
    extra_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    created_step: Mapped[int] = mapped_column(BigInteger)
    # the first step at which it is no longer valid
    expires_step: Mapped[int] = mapped_column(BigInteger)
    acknowledged: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default=text("'{}'"))
    applied_step: Mapped[int | None] = mapped_column(BigInteger)
    ended_step: Mapped[int | None] = mapped_column(BigInteger)
    # why ranks refused it
    reason: Mapped[str | None]
    # mean T of the slowest rank over the reports under it, s
    measured_time_s: Mapped[float | None] = mapped_column(Double)
    measured_reports: Mapped[int] = mapped_column(server_default=text("0"))


class TensorReport(OfProject, Base):
    """Times of a group over some steps; the latest reports of each group are kept."""

    __tablename__ = "tensor_report"
    __table_args__ = (belongs_to("group_id", "tensor_group.id"),)

    group_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # counts the group's reports from 1
    number: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger)
    received_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    times_s: Mapped[list[float]] = mapped_column(ARRAY(Double))
    matmul_s: Mapped[list[float]] = mapped_column(ARRAY(Double))
    # with the effect of the plan in force removed
    free_times_s: Mapped[list[float]] = mapped_column(ARRAY(Double))
    free_matmul_s: Mapped[list[float]] = mapped_column(ARRAY(Double))
    measured_step_s: Mapped[float | None] = mapped_column(Double)
    plan_version: Mapped[int | None]


class TensorSwitch(OfProject, Base):
    """A switch of a job's plans between advice and application; the latest row applies."""

    __tablename__ = "tensor_switch"
    __table_args__ = (
        one_of("mode", TensorMode),
        belongs_to("job_id", "job.id"),
        Index("ix_tensor_switch_job_id_id", "job_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    by: Mapped[str]
    mode: Mapped[TensorMode] = mapped_column(StateColumn(TensorMode))
    # upper bound of the job's own accuracy budget; null: none
    max_gamma: Mapped[float | None] = mapped_column(Double)
    expires_after_steps: Mapped[int]
