"""The page of the fleet: who counts in the chosen time, and who is silent."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from app.db.models.sessions import Job, Session
from app.services.sessions.analyze import analyze_session
from app.services.tasks.task_runs import claim
from tests.support.html import parse
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    import httpx

    from app.bootstrap import Container
    from tests.support.html import Element


def job(container: Container, name: str, age: timedelta = timedelta(0), world: int = 4) -> None:
    """Make a job with one slow session of so many GPUs, received so long ago."""
    stored = store(container, small_trace(), job=name)
    held = claim(container, stored.run)
    assert held is not None
    analyze_session(container, held)
    with container.uow() as tx:
        tx.session.execute(
            update(Session)
            .where(Session.id == stored.session)
            .values(received_at=tx.now - age, world=world)
        )


def fleet_of(client: httpx.Client, query: str = "") -> Element:
    return parse(client.get(f"/{query}").text)


def names(page: Element, table: str) -> list[str]:
    """Return the jobs of a table, which is not there where none are."""
    cells = [cell for found in page.all("table", table) for cell in found.all("td", "grow")]
    return [cell.all("a")[0].text for cell in cells]


def test_only_jobs_with_data_in_the_chosen_time_count_and_the_silent_stand_apart(
    container: Container, client: httpx.Client
) -> None:
    job(container, "lives")
    job(container, "ended-yesterday", timedelta(hours=30), world=512)
    job(container, "ended-last-month", timedelta(days=40), world=4096)
    page = fleet_of(client)
    assert names(page, "jobs") == ["lives"]
    assert "of 4 GPUs" in page.one("h1").text
    assert names(page, "silent") == ["ended-yesterday", "ended-last-month"]
    silent = page.one("section", id="silent").text
    assert silent.startswith("2 jobs are silent: no session in the last 24 h")
    assert page.one("p", "line").text.endswith("2 silent")

    week = fleet_of(client, "?range=7d")
    assert set(names(week, "jobs")) == {"lives", "ended-yesterday"}
    assert "of 516 GPUs" in week.one("h1").text
    assert names(week, "silent") == ["ended-last-month"]


def test_a_time_of_ones_own_shows_what_was_known_by_its_end(
    container: Container, client: httpx.Client
) -> None:
    job(container, "before", timedelta(days=10))
    job(container, "within", timedelta(days=5))
    job(container, "after")
    with container.reading() as tx:
        at = dict(tx.session.execute(select(Job.name, Session.received_at).join(Session)).all())
    begin, end = (at["within"] + timedelta(days=days) for days in (-1, 1))
    page = fleet_of(client, f"?from={begin:%Y-%m-%dT%H:%MZ}&to={end:%Y-%m-%dT%H:%MZ}")
    assert names(page, "jobs") == ["within"]
    assert names(page, "silent") == ["before"]
    assert page.all("td", "firing") == []
    [own] = [button for button in page.all("button") if "data-own" in button.attributes]
    assert f"{begin:%b %Y %H:%M}" in own.text


def test_where_all_are_silent_the_page_says_so_and_does_not_explain_how_to_connect(
    container: Container, client: httpx.Client
) -> None:
    job(container, "ended", timedelta(days=2))
    page = fleet_of(client)
    assert page.one("h1").text == "No job has sent a session in the last 24 h"
    assert page.one("title").text.startswith("Fleet: 1 silent job")
    assert names(page, "silent") == ["ended"]
    early = fleet_of(client, "?to=2020-01-01T00:00Z")
    assert (
        early.one("h1").text == "No job has sent a session in the time until 1 Jan 2020 00:00 UTC"
    )


def test_a_time_that_cannot_be_read_is_a_day(container: Container, client: httpx.Client) -> None:
    job(container, "lives")
    for query in ("?range=fortnight", "?from=yesterday", f"?to={'9' * 60}", "?from=9999-99-99"):
        page = fleet_of(client, query)
        assert names(page, "jobs") == ["lives"]
        assert page.one("a", aria_current="true").text == "24 h"


def test_jobs_are_sorted_by_what_they_lose_each_hour(
    container: Container, client: httpx.Client
) -> None:
    job(container, "small", world=4)
    job(container, "large", world=4000)
    page = fleet_of(client)
    assert "Lost each hour" in page.columns("jobs")
    at = page.columns("jobs").index("Lost each hour")
    lost = {}
    for row in page.one("table", "jobs").one("tbody").all("tr"):
        cells = row.all("td")
        lost[cells[1].all("a")[0].text] = float(cells[at].attributes["data-v"])
    assert round(lost["large"] / lost["small"]) == 1000
    job_page = parse(client.get("/jobs/large").text)
    assert round(lost["large"]) == round(float(job_page.rows("fleet")[0][5].replace(",", "")))


def test_an_empty_fleet_has_synthetic_jobs_sent_to_this_server(client: httpx.Client) -> None:
    address = str(client.base_url).rstrip("/")
    assert f"paceline demo --server {address}" in fleet_of(client).text
