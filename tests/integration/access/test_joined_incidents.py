"""Incidents of all projects on one page, for administrators only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, update

from app.jobs.models import Job
from app.platform.identity import Right
from app.sessions.models.tables import Session
from tests.support.alerting import Alerting
from tests.support.html import parse

if TYPE_CHECKING:
    from tests.integration.access.conftest import Company

ADDRESS = "/access/incidents"


def test_an_administrator_sees_the_incidents_of_all_projects(company: Company) -> None:
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        assert "No incident is open in any project" in client.get(ADDRESS).text
        Alerting(company.ours).slow("our-job")
        Alerting(company.theirs).slow("their-job")
        page = client.get(ADDRESS).text
        assert "2\u00a0open incidents in 2\u00a0projects" in page
        for project, job, container in (
            ("default", "our-job", company.ours),
            ("other", "their-job", company.theirs),
        ):
            incident = Alerting(container).incidents()[0].id
            assert f'<a href="/p/{project}/incidents/{incident}">{job}</a>' in page
            assert f'<a class="plain" href="/p/{project}/incidents">{project}</a>' in page
            assert client.get(f"/p/{project}/incidents/{incident}").status_code == 200
        # The page of a project lists only its own incidents.
        assert "their-job" not in client.get("/incidents?range=all").text
        assert ADDRESS in client.get("/access").text


def test_no_other_user_does(company: Company) -> None:
    Alerting(company.theirs).slow("their-job")
    for rights, project in (((Right.READ,), None), ((Right.OPERATE,), "other")):
        with company.client(company.token(*rights, project=project)) as client:
            answer = client.get(ADDRESS)
            assert answer.status_code == 403
            assert "their-job" not in answer.text


def test_the_incidents_of_one_project_can_be_asked_for(company: Company) -> None:
    Alerting(company.ours).slow("our-job")
    Alerting(company.theirs).slow("their-job")
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        page = client.get(f"{ADDRESS}?project=other").text
        assert "1\u00a0open incident in project other" in page
        assert "their-job" in page
        assert "our-job" not in page
        assert "<option selected>other</option>" in page
        file = client.get("/access/incidents.csv?project=other").text.splitlines()
        assert [line.split(",")[0] for line in file] == ["project", "other"]
        assert len(client.get("/access/incidents.csv").text.splitlines()) == 3
        found = client.get("/api/v1/access/incidents?project=other").json()
        assert found["count"] == 1
        assert [(one["project"], one["job"]) for one in found["incidents"]] == [
            ("other", "their-job")
        ]
        assert client.get("/api/v1/access/incidents").json()["count"] == 2
        assert "No incident is open in project none" in client.get(f"{ADDRESS}?project=none").text


def test_the_most_severe_come_first_then_the_costliest(company: Company) -> None:
    for container, job, gpus in (
        (company.ours, "cheap", 8),
        (company.theirs, "expensive", 8000),
        (company.ours, "between", 80),
    ):
        Alerting(container).slow(job)
        with container.uow() as tx:
            of_job = select(Job.id).where(Job.name == job).scalar_subquery()
            tx.session.execute(update(Session).where(Session.job_id == of_job).values(world=gpus))
    with company.client(company.token(Right.READ, project=None)) as client:
        rows = parse(client.get("/incidents/everywhere").text).rows("inc")
    assert [row[3].split()[0] for row in rows] == ["expensive", "between", "cheap"]
    assert [row[2] for row in rows] == ["other", "default", "default"]
    assert len({row[0] for row in rows}) == 1


def test_a_reader_sees_the_incidents_of_the_projects_that_they_may_read(company: Company) -> None:
    Alerting(company.ours).slow("our-job")
    Alerting(company.theirs).slow("their-job")
    with company.client(company.token(Right.READ)) as client:
        page = client.get("/incidents/everywhere").text
        assert "our-job" in page
        assert "their-job" not in page
        assert "<option>other</option>" not in page
        assert "their-job" not in client.get("/incidents/everywhere?project=other").text
        file = client.get("/incidents/everywhere.csv").text
        assert [line.split(",")[0] for line in file.splitlines()] == ["project", "default"]
        assert "our-job" in client.get("/incidents").text, "one project has its own list"


def test_who_reads_several_projects_gets_one_list_unless_they_ask_for_one(
    company: Company,
) -> None:
    Alerting(company.ours).slow("our-job")
    Alerting(company.theirs).slow("their-job")
    with company.client(company.token(Right.READ, project=None)) as client:
        first = client.get("/incidents")
        assert (first.status_code, first.headers["Location"]) == (303, "/incidents/everywhere")
        assert "their-job" in client.get(first.headers["Location"]).text
        own = client.get("/incidents?range=all")
        assert own.status_code == 200
        assert "their-job" not in own.text
        assert client.get("/p/other/incidents").status_code == 200
