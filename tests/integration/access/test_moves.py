"""Moving a job moves all of its data; deleting a project deletes all of its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from app.access.moves import delete_project, move_job, prune_projects
from app.access.projects import create_project, list_projects
from app.errors import ConflictError, LostClaimError, NotFoundError
from app.incidents.channel_writes import create_channel
from app.incidents.everywhere import open_everywhere
from app.incidents.models.tables import AlertDelivery, AlertIncident
from app.incidents.sweep import AlertSweep, sweep_alerts
from app.incidents.triage import assign_incidents, comment_on
from app.jobs.models import Job
from app.platform.database.columns import Base, OfProject
from app.platform.database.task_runs import TaskRun
from app.platform.identity import Right
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim, finish
from app.quotas.usage import use_of
from app.sessions.models.tables import Session
from app.sessions.read import report_json
from app.sessions.replays import stored_trace
from tests.integration.api import bodies
from tests.integration.api.chunks import rank_body, url
from tests.integration.incidents.conftest import alerting, receiver
from tests.support import plans
from tests.support.alerting import Alerting
from tests.support.reads import read
from tests.support.sessions import small_trace, store
from tests.support.tensor import SLOW, TrainingJob

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.integration.access.conftest import Company
    from tests.support.receiver import Receiver


__all__ = ["alerting", "receiver"]


@pytest.fixture
def other(container: Container) -> Container:
    return container.within(create_project(container.everywhere(), "other").id)


def _rows(container: Container, project_id: int) -> dict[str, int]:
    with container.everywhere().reading() as tx:
        counts = {
            str(mapper.local_table): tx.session.execute(
                select(func.count())
                .select_from(mapper.class_)
                .where(mapper.class_.project_id == project_id)
            ).scalar_one()
            for mapper in Base.registry.mappers
            if issubclass(mapper.class_, OfProject)
        }
    return {name: count for name, count in counts.items() if count}


def test_a_job_moves_with_its_sessions_reports_and_incidents(
    container: Container, other: Container
) -> None:
    stored = store(container, small_trace(), job="llm")
    assert execute(container, LeaseKeeper(container), stored.run)
    Alerting(container).slow("llm")
    incident = Alerting(container).incidents()[0]
    comment_on(container, incident.id, words="Rack 7 was updated.", by=None)
    assign_incidents(container, [incident.id], to="kim", by=None)
    move_job(container, "llm", "other")

    assert {"alert_comment", "alert_assignee"} <= set(_rows(other, other.project_id))
    assert set(_rows(container, container.project_id)) == {"alert_rule", "project_usage"}
    assert read(other, report_json, stored.session)
    assert len(read(other, stored_trace, stored.session).unpack()) == len(small_trace())
    with other.reading() as tx:
        assert tx.session.execute(select(Job.name)).scalars().all() == ["llm"]
        assert tx.session.execute(select(AlertIncident.id)).scalars().all()
    assert read(other, use_of, other.project_id).operations == len(small_trace())
    assert read(container, use_of, container.project_id).operations == 0
    # The moved incident continues in the other project.
    Alerting(other).fast("llm")


def _fill(company: Company, project: str) -> None:
    """Store a job with attempts, a group with a plan, and an open session in a project."""
    with company.client(company.token(Right.INGEST, project=project, name="filling")) as client:
        for run in ("first", "second"):
            body = {"run_id": run, "restart": 0}
            assert client.post("/api/v1/jobs/llm/attempts", json=body).status_code == 201
        assert TrainingJob(client).report(*SLOW, steps=3) is not None
        sent = client.put(url(1, "0", 0, job="llm"), content=rank_body(0), params=bodies.SIZES)
        assert sent.status_code == 202, sent.text


def test_a_job_moves_with_its_attempts_groups_and_open_sessions(company: Company) -> None:
    _fill(company, "default")
    move_job(company.ours, "llm", "other")
    left = _rows(company.container, company.ours.project_id)
    assert set(left) <= {"alert_rule", "project_usage"}
    with company.client(company.token(Right.INGEST, Right.READ, project="other")) as client:
        plan = client.get("/api/v1/jobs/llm/tp/0-0/plan", params={"attempt": 1, "wait_s": 0})
        assert plan.json()["version"] >= 1
        # The third attempt and the open session continue in the other project.
        body = {"run_id": "third", "restart": 0}
        assert client.post("/api/v1/jobs/llm/attempts", json=body).json()["attempt"] == 3
        sent = client.put(url(1, "1", 0, job="llm"), content=rank_body(1), params=bodies.SIZES)
        assert sent.status_code == 202, sent.text
        assert client.post("/api/v1/jobs/llm/attempts/1/sessions/1/seal").status_code == 202


def test_a_deleted_project_leaves_none_of_its_groups_plans_and_channels(company: Company) -> None:
    _fill(company, "other")
    plans.ask(company.theirs, plans.small_spec())
    create_channel(
        company.theirs,
        name="hook",
        kind="webhook",
        config={"url": "https://hooks.example/x"},
        enabled=True,
    )
    assert {"tensor_group", "tensor_plan", "attempt", "chunk", "plan", "alert_channel"} <= set(
        _rows(company.container, company.theirs.project_id)
    )
    delete_project(company.container, "other")
    assert prune_projects(company.container) == 1
    assert _rows(company.container, company.theirs.project_id) == {}


def test_an_analysis_that_is_under_way_stores_nothing_after_the_move(
    container: Container, other: Container
) -> None:
    stored = store(container, small_trace(), job="llm")
    held = claim(container, stored.run)
    assert held is not None
    move_job(container, "llm", "other")
    with pytest.raises(LostClaimError), container.within(held.project_id).uow() as tx:
        finish(tx, held)
    with other.reading() as tx:
        assert tx.session.execute(select(TaskRun.id)).scalars().all() == [stored.run]


def test_a_job_does_not_move_onto_another_one(container: Container, other: Container) -> None:
    for one in (container, other):
        store(one, small_trace(), job="llm")
    with pytest.raises(ConflictError, match="has a job llm already"):
        move_job(container, "llm", "other")
    for job, to in (("unknown", "other"), ("llm", "nowhere")):
        with pytest.raises(NotFoundError):
            move_job(container, job, to)
    with container.reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(Session)).scalar() == 1


def test_a_deleted_project_leaves_nothing_and_its_name_is_free(
    container: Container, other: Container
) -> None:
    stored = store(other, small_trace(), job="llm")
    assert execute(container, LeaseKeeper(container), stored.run)
    Alerting(other).slow("llm")
    kept = store(container, small_trace(), job="llm")
    everywhere = container.everywhere()
    delete_project(everywhere, "other")
    assert [project.name for project in read(everywhere, list_projects)] == ["default"]
    again = create_project(everywhere, "other")
    assert again.id != other.project_id

    assert prune_projects(container) == 1
    assert _rows(container, other.project_id) == {}
    with container.reading() as tx:
        assert tx.session.execute(select(Session.id)).scalars().all() == [kept.session]
    assert set(_rows(container, again.id)) == {"alert_rule"}


def test_nothing_of_a_deleted_project_is_sent_or_worked_on(
    alerting: Alerting, receiver: Receiver
) -> None:
    container = alerting.container
    project = create_project(container.everywhere(), "other")
    theirs = Alerting(container.within(project.id))
    theirs.channel(receiver)
    theirs.slow()
    stored = store(theirs.container, small_trace(), job="llm")
    theirs.time_passes()
    delete_project(container.everywhere(), "other")

    for _ in range(3):
        assert sweep_alerts(container) == AlertSweep()
    assert claim(container, stored.run) is None
    with theirs.container.reading() as tx:
        # The project's data still exist until the sweeper deletes them, but no worker uses them.
        assert tx.session.execute(select(func.count()).select_from(AlertIncident)).scalar_one()
        assert not tx.session.execute(select(AlertDelivery.id)).all()
    assert receiver.got == []
    with container.everywhere().reading() as tx:
        assert open_everywhere(tx, 10).rows == []


def test_a_delivery_that_was_started_is_not_sent_after_its_project_was_deleted(
    alerting: Alerting, receiver: Receiver
) -> None:
    container = alerting.container
    project = create_project(container.everywhere(), "other")
    theirs = Alerting(container.within(project.id))
    theirs.channel(receiver)
    theirs.slow()
    theirs.time_passes()
    assert sweep_alerts(container).started == 1
    with theirs.container.reading() as tx:
        [run] = tx.session.execute(select(TaskRun.id)).scalars()
    delete_project(container.everywhere(), "other")
    assert not execute(container, LeaseKeeper(container), run)
    assert receiver.got == []


def test_the_default_project_stays(container: Container) -> None:
    with pytest.raises(ConflictError):
        delete_project(container.everywhere(), "default")


def test_deleting_a_project_over_http_answers_as_its_schema_says(company: Company) -> None:
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        answer = client.delete("/api/v1/projects/other")
        again = client.delete("/api/v1/projects/other")
        document = client.get("/api/openapi.json").json()

    said = document["paths"]["/api/v1/projects/{name}"]["delete"]["responses"]
    assert (answer.status_code, answer.content) == (202, b"")
    assert "content" not in said["202"]
    assert (again.status_code, again.json()["code"]) == (404, "project.not_found")
