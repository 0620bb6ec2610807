"""The page of the fleet's report, its files, and the same over the API."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pytest

from app.dashboard.report.exports import EXPORTS
from tests.integration.fleet_report.build import DAY, HOUR, session

if TYPE_CHECKING:
    import httpx

    from app.bootstrap import Container


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
    assert "job-11, session 1" in text, "the slowest job is one click away"


def test_an_empty_fleet_has_a_page(client: httpx.Client) -> None:
    answer = client.get("/report?range=24h")
    assert answer.status_code == 200
    assert "No session was received" in answer.text


@pytest.mark.parametrize("asked", ["?range=1h", "?range=30d", "?from=2026-01-01", "?to=2020-01-01"])
def test_any_time_has_a_page(client: httpx.Client, container: Container, asked: str) -> None:
    fleet(container)
    assert client.get(f"/report{asked}").status_code == 200


@pytest.mark.parametrize("name", list(EXPORTS))
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
