"""Tables of tensor-parallel groups: the groups, their reports, their plans, and switches."""

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

    # set by the group's first report, and fixed for the attempt
    world_size: Mapped[int]
    columns: Mapped[int]
    unit: Mapped[int]
    # values of the latest report
    max_gamma: Mapped[float] = mapped_column(Double)
    apply: Mapped[bool] = mapped_column(Boolean)
    methods: Mapped[list[str]] = mapped_column(ARRAY(Text))
    costs: Mapped[Costs | None] = mapped_column(_COSTS)
    sizes: Mapped[tuple[Sizes, ...] | None] = mapped_column(_SIZES)
    ranks: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))
    hosts: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    # number of received reports, and last step of the latest report
    reports: Mapped[int] = mapped_column(server_default=text("0"))
    step: Mapped[int | None] = mapped_column(BigInteger)
    reported_at: Mapped[datetime | None]

    # fields of an app.analysis.mitigation.tensor.control.Streak
    over: Mapped[int] = mapped_column(server_default=text("0"))
    calm: Mapped[int] = mapped_column(server_default=text("0"))
    drifted: Mapped[int] = mapped_column(server_default=text("0"))
    missed: Mapped[int] = mapped_column(server_default=text("0"))
    rung: Mapped[int] = mapped_column(server_default=text("0"))
    since_step: Mapped[int | None] = mapped_column(BigInteger)
    replace_node: Mapped[bool] = mapped_column(server_default=text("false"))
    # methods that ranks refused in this attempt
    refused: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    # version of the newest plan; 0 before the first plan
    version: Mapped[int] = mapped_column(server_default=text("0"))


class TensorPlan(OfProject, Base):
    """A version of a group's plan; the method ``none`` withdraws the previous version."""

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
    # whether the job and the switch allowed the application of the plan
    apply: Mapped[bool] = mapped_column(Boolean)
    budget: Mapped[float] = mapped_column(Double)
    ranks: Mapped[tuple[RankShare, ...]] = mapped_column(_RANKS)
    # T of the slowest and of the fastest rank without a plan, and predicted T with the plan,
    # seconds
    slowest_time_s: Mapped[float] = mapped_column(Double)
    fastest_time_s: Mapped[float] = mapped_column(Double)
    predicted_time_s: Mapped[float] = mapped_column(Double)
    extra_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    created_step: Mapped[int] = mapped_column(BigInteger)
    # first step at which the plan is no longer valid
    expires_step: Mapped[int] = mapped_column(BigInteger)
    acknowledged: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default=text("'{}'"))
    applied_step: Mapped[int | None] = mapped_column(BigInteger)
    ended_step: Mapped[int | None] = mapped_column(BigInteger)
    # reason why ranks refused the plan
    reason: Mapped[str | None]
    # mean T of the slowest rank over the reports under this plan, seconds
    measured_time_s: Mapped[float | None] = mapped_column(Double)
    measured_reports: Mapped[int] = mapped_column(server_default=text("0"))


class TensorReport(OfProject, Base):
    """A report of a group's times over some steps; only the latest reports of a group are kept."""

    __tablename__ = "tensor_report"
    __table_args__ = (belongs_to("group_id", "tensor_group.id"),)

    group_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # number of the report within the group, from 1
    number: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger)
    received_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    times_s: Mapped[list[float]] = mapped_column(ARRAY(Double))
    matmul_s: Mapped[list[float]] = mapped_column(ARRAY(Double))
    # times without the effect of the plan in force, seconds
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
    # upper bound of the job's own accuracy budget; null: no bound
    max_gamma: Mapped[float | None] = mapped_column(Double)
    expires_after_steps: Mapped[int]
