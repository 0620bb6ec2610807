"""A session that cannot show which rank of a group is slow requests one of every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from app.analysis.synthesis.injections.computations import SlowWorker, StageImbalance
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from app.platform.database.states import TaskState
from app.platform.database.task_runs import REQUEST_RECORDING, TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from tests.integration.api.pulse.test_loop import Job
from tests.support.sessions import store

if TYPE_CHECKING:
    from app.analysis.synthesis.injections.base import Injection
    from app.analysis.trace.model import Trace
    from tests.integration.api.conftest import Installation

GROUPS = JobModel(Sizes(dp=8, pp=2, tp=2), microbatches=8, steps=8)
NO_ONE_SLOW = slice(0, 0)


def trace(*slow: Injection, profiler: Profiler | None = None) -> Trace:
    """Return a session of a job with tensor-parallel groups."""
    job = GROUPS if profiler is None else JobModel(GROUPS.sizes, 8, 8, profiler=profiler)
    return synthesize(job, slow, seed=1).trace


def analyzed(installation: Installation, session: Trace) -> int:
    """Analyze a session and run the tasks that it causes; return how many there are."""
    container = installation.container
    stored = store(container, session, job="llm")
    assert execute(container, LeaseKeeper(container), stored.run)
    with container.uow() as tx:
        query = select(TaskRun.id).where(
            TaskRun.kind == REQUEST_RECORDING, TaskRun.state == TaskState.QUEUED
        )
        runs = tx.session.execute(query).scalars().all()
    for run in runs:
        assert execute(container, LeaseKeeper(container), run)
    return len(runs)


def requests(installation: Installation) -> list[dict[str, Any]]:
    """Return the job's requests for sessions, the latest first."""
    answer = installation.client.get("/api/v1/jobs/llm/recordings")
    found: list[dict[str, Any]] = answer.json()["requests"]
    return found


def test_a_slow_worker_of_several_ranks_requests_a_session_of_every_rank(
    installation: Installation,
) -> None:
    job = Job(installation, NO_ONE_SLOW)
    job.send(20)
    assert analyzed(installation, trace(SlowWorker((5, 1), 1.6))) == 1
    (request,) = requests(installation)
    assert request["every_rank"]
    assert request["reason"] == "session 1 does not show which rank of a group is slow"
    job.send(40)
    ((host, asked),) = job.asked
    assert (host, asked["every_rank"], asked["by"]) == (0, True, "notice")
    # Once an attempt: a second session that lacks the same requests nothing.
    assert analyzed(installation, trace(SlowWorker((5, 1), 1.7))) == 1
    assert len(requests(installation)) == 1


def test_nothing_is_requested_of_a_job_without_a_pulse(installation: Installation) -> None:
    assert analyzed(installation, trace(SlowWorker((5, 1), 1.6))) == 1
    assert requests(installation) == []


@pytest.mark.parametrize(
    "session",
    [
        trace(),
        trace(StageImbalance(1.6, 1.6)),
        trace(SlowWorker((5, 1), 1.6), profiler=Profiler(tensor_ranks=True)),
        synthesize(JobModel(Sizes(dp=8, pp=2), 8, 8), (SlowWorker((5, 1), 1.6),), seed=1).trace,
    ],
    ids=["healthy", "another cause", "every rank is recorded", "no groups"],
)
def test_nothing_is_requested_where_no_group_s_collectives_are_missing(
    installation: Installation, session: Trace
) -> None:
    Job(installation, NO_ONE_SLOW).send(20)
    assert analyzed(installation, session) == 0
    assert requests(installation) == []
