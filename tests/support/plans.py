"""Specifications of plans, and requested plans."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from app.plans.models import Plan
from app.plans.requests import submit_plan
from app.plans.specs.spec import read_request
from app.platform.database.task_runs import PLAN_TEMPLATE, TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper

if TYPE_CHECKING:
    from app.platform.container import Container


@dataclass(frozen=True, slots=True)
class Asked:
    """A plan and the task run of its search."""

    plan: uuid.UUID
    run: uuid.UUID


def small_spec(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return twelve layers on two types of devices, planned in milliseconds."""
    layer = {
        "forward_ms": 4.0,
        "backward_ms": 8.0,
        "parameter_bytes": 2e8,
        "output_bytes": 8e6,
        "stored_activation_bytes": 1e8,
    }
    spec: dict[str, Any] = {
        "model": {"layers": [dict(layer) for _ in range(12)]},
        "devices": [
            {"type": "a6000", "nodes": 2, "gpus_per_node": 2, "speed": 2.0, "memory_bytes": 5e10},
            {"type": "v100", "nodes": 2, "gpus_per_node": 2, "memory_bytes": 1.7e10},
        ],
        "microbatches": 16,
    }
    return spec | changes


def small_job_spec(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a model of twelve blocks on two types of nodes, with its batch: a whole job."""
    spec: dict[str, Any] = {
        "model": {
            "transformer": {
                "layers": 12,
                "hidden": 2048,
                "heads": 16,
                "vocabulary": 32000,
                "sequence": 1024,
            }
        },
        "devices": [
            {"type": "A100", "nodes": 1, "gpus_per_node": 8},
            {"type": "H100", "nodes": 1, "gpus_per_node": 8},
        ],
        "global_batch": 64,
        "network": {"inter_node_gbytes_per_s": 100},
    }
    return spec | changes


def long_spec() -> dict[str, Any]:
    """Return a cluster whose optimal search takes long enough to be interrupted."""
    speeds = {"v100": 1.0, "3090": 1.8, "a6000": 2.15, "a100": 4.41}
    return {
        "model": {
            "layers": [{"forward_ms": 10 + 7 * (i % 13) + i / 11} for i in range(98)],
        },
        "devices": [
            {"type": name, "nodes": 16, "gpus_per_node": 8, "speed": speed}
            for name, speed in speeds.items()
        ],
        "microbatches": 64,
    }


def ask(container: Container, spec: object, **asked: Any) -> Asked:  # noqa: ANN401 - JSON
    """Request a plan as the API does."""
    submitted = submit_plan(container, read_request({"spec": spec} | asked))
    return Asked(submitted.id, open_run(container, submitted.id))


def open_run(container: Container, plan: uuid.UUID) -> uuid.UUID:
    """Return the task run of a plan that is not finished."""
    with container.uow() as tx:
        return tx.session.execute(
            select(TaskRun.id).where(
                TaskRun.kind == PLAN_TEMPLATE,
                TaskRun.subject_id == plan,
                TaskRun.state.in_(("queued", "running")),
            )
        ).scalar_one()


def do(container: Container, asked: Asked) -> bool:
    """Run a plan's search in this process, in place of a worker."""
    return execute(container, LeaseKeeper(container), asked.run)


def plan_row(container: Container, plan: uuid.UUID) -> Plan:
    """Return a plan's row in the database."""
    with container.uow() as tx:
        return tx.session.execute(select(Plan).where(Plan.id == plan)).scalar_one()
