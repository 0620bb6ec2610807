"""Pulses of two projects with jobs of the same name; metrics cover the whole installation."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import text

from app.platform.identity import Right
from app.pulse.advance import advance_pulses
from tests.integration.access.conftest import METRICS_TOKEN
from tests.integration.api.pulse.sending import bodies, slow_job

if TYPE_CHECKING:
    from tests.integration.access.conftest import Company

SENT = "/api/v1/jobs/{}/attempts/1/pulse"
PROJECTS = {"default": "ours", "other": "theirs"}


def send(company: Company) -> None:
    """Send minutes of the pulse of a job in each project, and process them."""
    for project, job in PROJECTS.items():
        with company.client(company.token(Right.INGEST, project=project)) as client:
            for body in islice(bodies(slow_job()[0]), 32):
                assert client.post(SENT.format(job), content=body).status_code == 202
    while advance_pulses(company.container, timedelta(0)):
        pass


def pulses(company: Company) -> dict[str, int]:
    """Return the numbers of jobs and of bodies with pulses."""
    with company.container.engine.connect() as connection:
        return {
            table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608 - of this file
            for table in ("job", "inbox")
        }


def test_a_token_of_another_project_sends_nothing_to_a_job(company: Company) -> None:
    send(company)
    before = pulses(company)
    body = next(bodies(slow_job()[0]))
    theirs = company.token(Right.INGEST, project="other", name="foreign")
    with company.client(theirs, **{"paceline-project": "default"}) as client:
        answer = client.post(SENT.format("ours"), content=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "project.not_found")
        prefixed = client.post(f"/p/default{SENT.format('ours')}", content=body)
        assert prefixed.status_code == 404
    with company.client(company.token(Right.READ, project="other")) as client:
        answer = client.post(SENT.format("theirs"), content=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "access.forbidden")
        # Nor can the notices of the other project's job be read.
        assert client.get("/api/v1/jobs/ours/pulse/notices").status_code == 404
    assert pulses(company) == before
    # In the other project, the same name is another job.
    with company.client(theirs) as client:
        assert client.post(SENT.format("ours"), content=body).status_code == 202
    assert pulses(company) == {"job": before["job"] + 1, "inbox": before["inbox"] + 1}


def test_metrics_name_jobs_of_all_projects_to_those_who_read_in_all(company: Company) -> None:
    send(company)
    with company.container.engine.begin() as connection:
        connection.execute(
            text(
                "DELETE FROM pulse_span WHERE id NOT IN"
                " (SELECT max(id) FROM pulse_span WHERE seconds = 60 GROUP BY job_id)"
            )
        )
        connection.execute(text("UPDATE pulse_span SET start = now() - interval '2 minutes'"))
    for token in (
        company.token(Right.READ, project="other", name="their-reader"),
        company.token(Right.OPERATE, project="default", name="our-operator"),
    ):
        with company.client(token) as client:
            refused = client.get("/metrics")
        assert refused.status_code == 403
        assert not any(job in refused.text for job in PROJECTS.values())
    for token in (METRICS_TOKEN, company.token(Right.READ, project=None)):
        with company.client(token) as client:
            found = client.get("/metrics").text
        for project, job in PROJECTS.items():
            labels = f'job="{job}",project="{project}",training_job="{job}"'
            assert f"paceline_job_step_seconds{{{labels}}}" in found
