"""Incidents of all projects on one page: an administrator's, and nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.access.principals import Right
from tests.support.alerting import Alerting

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
        # Each project's own page has its own.
        assert "their-job" not in client.get("/incidents").text
        assert ADDRESS in client.get("/access").text


def test_nobody_else_does(company: Company) -> None:
    Alerting(company.theirs).slow("their-job")
    for rights, project in (((Right.READ,), None), ((Right.OPERATE,), "other")):
        with company.client(company.token(*rights, project=project)) as client:
            answer = client.get(ADDRESS)
            assert answer.status_code == 403
            assert "their-job" not in answer.text
