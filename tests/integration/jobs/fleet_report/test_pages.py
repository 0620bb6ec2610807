"""The page of the fleet's report, its CSV files, and its API."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pytest

from app.jobs.pages.report_routes import EXPORTS
from tests.integration.jobs.fleet_report.build import DAY, HOUR, session
from tests.support.html import parse

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container


def fleet(container: Container) -> None:
    for number in range(12):
        session(
            container,
            1 + number / 20,
            ago=(number + 1) * HOUR,
            job=f"job-{number}",
            gpus=128 * 2 ** (number % 5),
            m_w=number / 12,
            context=4096 if number % 2 else 32_768,
            lengths=((1024, 1), (4096, 1)) if number % 2 else (),
            labels={"team": f"team-{number % 3}", "owner": f"owner-{number}"},
        )
    session(container, 1.3, ago=8 * DAY, job="job-1")
    session(container, None, ago=HOUR, job="job-2", state="no_verdict")


def test_the_page_says_what_it_costs_and_what_counts(
    client: httpx.Client, container: Container
) -> None:
    fleet(container)
    text = client.get("/report").text
    assert "Stragglers cost" in text
    assert "12 of 12\N{NO-BREAK SPACE}jobs and 12 of 13\N{NO-BREAK SPACE}sessions count" in text
    assert "1 no verdict" in text
    assert "job-11, session 1" not in text, "figures are a tab of the fleet"


def test_the_figures_are_a_tab_of_the_fleet(client: httpx.Client, container: Container) -> None:
    fleet(container)
    jobs = client.get("/").text
    assert 'href="/?tab=figures"' in jobs
    assert "<svg viewBox" not in jobs, "the list is light"
    text = client.get("/?tab=figures").text
    assert "job-11, session 1" in text, "the slowest job is one click away"
    assert "10 of 12\N{NO-BREAK SPACE}jobs straggle" in text
    of_team = client.get("/?tab=figures&team=team-1&range=30d").text
    assert "4\N{NO-BREAK SPACE}jobs straggle" in of_team
    assert 'href="/report/figures.csv?range=30d&amp;team=team-1"' in of_team
    file = client.get("/report/figures.csv?range=30d&team=team-1").text
    assert len(file.splitlines()) == 5


def test_the_figures_are_also_of_the_jobs_that_the_paper_counts(
    client: httpx.Client, container: Container
) -> None:
    fleet(container)
    session(container, 1.5, ago=HOUR, job="tiny", gpus=8)
    page = parse(client.get("/?tab=figures&team=").text)
    [link] = [one for one in page.all("a") if one.text == "As in the paper"]
    of_paper = client.get(link.attributes["href"]).text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Jobs of 128 GPUs or more, restarted at most 15 times: 12 of 13" in of_paper
    assert "tiny, session 1" not in of_paper
    assert len(client.get("/report/figures.csv?sample=paper").text.splitlines()) == 13
    found = client.get("/api/v1/fleet/report?sample=paper").json()
    assert (found["sample"]["jobs"], found["sample"]["fleet_jobs"]) == (12, 13)
    assert 0.9 < found["sample"]["gpu_hours_share"] < 1
    assert client.get("/api/v1/fleet/report?sample=some").status_code == 422


def test_sequence_lengths_have_a_histogram(client: httpx.Client, container: Container) -> None:
    fleet(container)
    text = client.get("/?tab=figures").text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Half of the sequences are shorter than 2,048 tokens, the longest up to 8,191" in text
    lengths = client.get("/api/v1/fleet/report").json()["lengths"]
    assert lengths == [
        {"low": 1024, "high": 2048, "share": pytest.approx(0.5)},
        {"low": 2048, "high": 4096, "share": 0.0},
        {"low": 4096, "high": 8192, "share": pytest.approx(0.5)},
    ]


def test_the_report_is_broken_down_by_team_and_owner_with_filters(
    client: httpx.Client, container: Container
) -> None:
    fleet(container)
    page = parse(client.get("/report?range=24h").text)
    teams = page.one("section", aria_label="Teams")
    assert [row[0] for row in teams.rows()] == ["team-2", "team-1", "team-0"]
    owners = page.one("section", aria_label="Owners").rows()
    assert len(owners) == 11
    assert owners[-1][0].replace("\N{NO-BREAK SPACE}", " ") == "2 other owners"
    [link] = [one for one in teams.all("a") if one.text == "team-1"]
    assert link.attributes["href"] == "/report?team=team-1&range=24h"
    narrowed = parse(client.get(link.attributes["href"]).text)
    assert narrowed.one("h1").text.startswith("Stragglers cost team team-1")
    assert len(narrowed.one("section", aria_label="Jobs").rows()) == 4
    [chosen] = narrowed.one("select", aria_label="Team").all("option", selected="")
    assert chosen.text == "team-1"
    assert narrowed.one("a", "cleared").attributes["href"] == "/report?range=24h"
    empty = client.get("/report?team=unknown%00&owner=x&label=y%3D1")
    assert "No session was received" in empty.text


def test_a_fleet_without_teams_says_how_jobs_get_one(
    client: httpx.Client, container: Container
) -> None:
    session(container, 1.5, ago=HOUR)
    text = client.get("/report").text
    assert "No job names its team" in text
    assert "Labels come with the metadata" in text


def test_an_empty_fleet_has_a_page(client: httpx.Client) -> None:
    answer = client.get("/report?range=24h")
    assert answer.status_code == 200
    assert "No session was received" in answer.text


@pytest.mark.parametrize("asked", ["?range=1h", "?range=30d", "?from=2026-01-01", "?to=2020-01-01"])
def test_any_time_has_a_page(client: httpx.Client, container: Container, asked: str) -> None:
    fleet(container)
    assert client.get(f"/report{asked}").status_code == 200


@pytest.mark.parametrize("name", ["figures", *EXPORTS])
def test_each_table_is_a_file(client: httpx.Client, container: Container, name: str) -> None:
    fleet(container)
    answer = client.get(f"/report/{name}.csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    header, *rows = list(csv.reader(io.StringIO(answer.text)))
    assert all(len(row) == len(header) for row in rows)
    if name == "figures":
        assert len(rows) == 12


def test_a_table_that_is_not_there_is_not_found(client: httpx.Client) -> None:
    assert client.get("/report/salaries.csv").status_code == 404


def test_the_api_says_the_same(client: httpx.Client, container: Container) -> None:
    fleet(container)
    found = client.get("/api/v1/fleet/report").json()
    assert found["coverage"]["counted_sessions"] == 12
    assert found["straggling_jobs"] == 10
    assert len(found["trend"]) == 8
    assert found["costs"]["lost_gpu_hours"] == pytest.approx(found["trend"][-1]["lost_gpu_hours"])
    figures = {one["name"]: one for one in found["figures"]}
    assert figures["waste"]["examples"][0]["job"] == "job-11"
    assert figures["waste"]["curves"][0]["points"][-1][1] == 1.0
    assert figures["m_w"]["jobs"] == 10
    assert {one["name"]: one["jobs"] for one in found["teams"]} == {
        f"team-{number}": 4 for number in range(3)
    }
    assert len(found["owners"]) == 12
    of_team = client.get("/api/v1/fleet/report?team=team-2").json()
    assert of_team["coverage"]["counted_sessions"] == 4
    assert [one["name"] for one in of_team["teams"]] == ["team-2"]
    assert client.get("/api/v1/fleet/report?team=%00").status_code == 422
