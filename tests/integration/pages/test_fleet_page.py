"""The page of the fleet: jobs with sessions in the chosen time, and silent jobs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import select, text, update

from app.analysis.budget.split import Part, Shares
from app.jobs.models import Job
from app.jobs.pages import exports
from app.platform.tasks.runs import claim
from app.sessions.analyze import analyze_session
from app.sessions.models.tables import Session, StoredVerdict
from benchmarks.support.weighing import elements
from tests.integration.pages.test_job_page import sessions
from tests.support.html import parse
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    import httpx
    import pytest

    from app.platform.container import Container
    from tests.support.html import Element


def job(container: Container, name: str, age: timedelta = timedelta(0), world: int = 4) -> None:
    """Store a job with one slow session on a number of GPUs, received some time ago."""
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
    """Return the jobs of a table; empty if the page has no such table."""
    cells = [cell for found in page.all("table", table) for cell in found.all("td", "grow")]
    return [cell.all("a")[0].text for cell in cells]


def test_only_jobs_with_data_in_the_chosen_time_count_and_silent_ones_are_apart(
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


def test_a_chosen_time_shows_the_fleet_as_it_was_known_at_its_end(
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
    assert early.one("h1").text == "No job has sent a session in the chosen time"


def test_a_time_that_cannot_be_read_is_a_day(container: Container, client: httpx.Client) -> None:
    job(container, "lives")
    for query in ("?range=fortnight", "?from=yesterday", f"?to={'9' * 60}", "?from=9999-99-99"):
        page = fleet_of(client, query)
        assert names(page, "jobs") == ["lives"]
        assert page.one("span", "range").one("a", aria_current="true").text == "24 h"


def test_jobs_are_sorted_by_what_they_lose_each_hour(
    container: Container, client: httpx.Client
) -> None:
    job(container, "small", world=4)
    job(container, "large", world=4000)
    page = fleet_of(client)
    at = page.columns("jobs").index("Lost each hour")
    assert names(page, "jobs") == ["large", "small"], "what costs most comes first"
    assert names(fleet_of(client, "?sort=-lost"), "jobs") == ["large", "small"]
    assert names(fleet_of(client, "?sort=lost"), "jobs") == ["small", "large"]
    large = page.rows("jobs")[names(page, "jobs").index("large")]
    assert large[at] == parse(client.get("/jobs/large").text).rows("fleet")[0][5]


def test_jobs_are_listed_sorted_and_added_up_by_the_cause_of_their_loss(
    container: Container, client: httpx.Client
) -> None:
    nothing = dict.fromkeys((part.value for part in Part), 0.0)
    for name, lost in {
        "waits": {"waiting": 0.2},
        "loads": {"between_steps_above": 0.3},
        "saves": {"between_steps_above": 0.5, "waiting": 0.06},
        "drifts": {"slow_together": 0.4},
    }.items():
        sessions(container, [1.01], job=name)
        shares = Shares(**{**nothing, **lost, "computing": 1 - sum(lost.values())})
        with container.uow() as tx:
            verdict = tx.session.execute(
                select(StoredVerdict)
                .join(Session, Session.id == StoredVerdict.session_id)
                .join(Job, Job.id == Session.job_id)
                .where(Job.name == name)
            ).scalar_one()
            verdict.document = replace(verdict.document, shares=shares)

    def listed(query: str) -> list[str]:
        return names(fleet_of(client, query), "jobs")

    assert listed("") == ["saves", "drifts", "loads", "waits"], "by the largest loss"
    assert listed("?sort=-between") == ["saves", "loads", "drifts", "waits"]
    assert listed("?sort=-stragglers")[:2] == ["waits", "saves"]
    assert listed("?sort=-together")[0] == "drifts"
    assert listed("?sort=time") == ["waits", "loads", "drifts", "saves"]
    assert listed("?loss=between") == ["saves", "loads"]
    assert listed("?loss=stragglers&sort=stragglers") == ["saves", "waits"]
    assert listed("?loss=nonsense") == listed("")
    page = fleet_of(client, "?loss=between")
    at = page.columns("jobs").index("Lost each hour")
    assert [row[at] for row in page.rows("jobs")] == ["2.0", "1.2"]
    spaced = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "2 matching jobs lose 3.2 GPU-hours each hour, 40 % of 8 GPUs" in spaced
    assert page.one("p", id="lost-to").text.replace("\N{NO-BREAK SPACE}", " ") == (
        "By kind, GPU-hours each hour: 0.079 to stragglers (1.0 %), 3.2 between steps (40 %)"
    )
    file = client.get("/fleet/jobs.csv?loss=between&sort=between").text
    rows = list(csv.DictReader(io.StringIO(file)))
    assert [(row["job"], float(row["lost_between_steps"])) for row in rows] == [
        ("loads", 0.3),
        ("saves", 0.5),
    ]
    assert [float(row["gpu_hours_lost_per_hour"]) for row in rows] == [1.2, 2.0]


def copies(container: Container, of: str, jobs: int) -> None:
    """Add jobs whose only session is a copy of this job's, with ever more GPUs."""
    columns = [column.name for column in Session.__table__.columns]
    changed = {
        "id": "gen_random_uuid()",
        "job_id": "job.id",
        "content_sha256": "NULL",
        "world": "substr(job.name, 6)::int",
    }
    values = ", ".join(changed.get(name, f"session.{name}") for name in columns)
    with container.engine.begin() as connection:
        project = connection.execute(text("SELECT id FROM project LIMIT 1")).scalar_one()
        connection.execute(
            text(
                "INSERT INTO job (project_id, name)"
                " SELECT :project, 'copy-' || lpad(n::text, 3, '0')"
                " FROM generate_series(1, :jobs) AS n"
            ),
            {"project": project, "jobs": jobs},
        )
        connection.execute(
            text(
                f"INSERT INTO session ({', '.join(columns)}) SELECT {values} FROM session, job"  # noqa: S608 - columns of ours
                " WHERE session.job_id = (SELECT id FROM job WHERE name = :of)"
                " AND job.name LIKE 'copy-%'"
            ),
            {"of": of},
        )
        connection.execute(
            text(
                "INSERT INTO session_verdict (project_id, session_id, document)"
                " SELECT was.project_id, session.id, was.document"
                " FROM session_verdict AS was JOIN session AS first ON first.id = was.session_id"
                " JOIN job AS template ON template.id = first.job_id AND template.name = :of,"
                " session JOIN job ON job.id = session.job_id WHERE job.name LIKE 'copy-%'"
                " ON CONFLICT DO NOTHING"
            ),
            {"of": of},
        )


def test_a_fleet_comes_page_by_page_and_its_sums_are_of_all(
    container: Container, client: httpx.Client
) -> None:
    job(container, "first")
    copies(container, "first", 120)
    page = fleet_of(client, "?sort=-gpus")
    assert "of 7,264 GPUs" in page.one("h1").text.replace("\N{NO-BREAK SPACE}", " ")
    assert page.one("title").text.startswith("Fleet: 121 of 121")
    listed, pages = names(page, "jobs"), [page]
    while onward := pages[-1].all("a", "btn", rel="next"):
        pages.append(parse(client.get(onward[0].attributes["href"]).text))
        assert pages[-1].one("h1").text == page.one("h1").text
        listed += names(pages[-1], "jobs")
    assert len(pages) == 3
    assert len(set(listed)) == 121
    assert [name for name in listed if name != "first"] == [
        f"copy-{n:03}" for n in range(120, 0, -1)
    ]
    assert names(fleet_of(client, "?sort=-gpus&page=99"), "jobs") == names(pages[-1], "jobs")
    assert pages[-1].one("section", id="jobs").one("h2").text == "Jobs 101 to 121 of 121"


def test_the_file_of_silent_jobs_has_each_once_in_the_order_of_the_page(
    container: Container, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(container, "heard")
    job(container, "b", timedelta(days=2))
    job(container, "a", timedelta(days=3))
    # All copies are as old, so they are ordered by name.
    job(container, "copied", timedelta(days=9))
    copies(container, "copied", 25)
    page = fleet_of(client)
    first = names(page, "silent")
    for size in (1, 4, 28, 500):
        monkeypatch.setattr(exports, "BATCH", size)
        rows = list(csv.DictReader(io.StringIO(client.get("/fleet/silent.csv").text)))
        found = [row["job"] for row in rows]
        assert found[: len(first)] == first
        assert len(found) == len(set(found)) == 28
        assert "heard" not in found
    rows = list(csv.DictReader(io.StringIO(client.get("/fleet/silent.csv?q=copy-").text)))
    assert [row["job"] for row in rows] == [f"copy-{n:03}" for n in range(1, 26)]


def test_a_fleet_is_searched_where_it_is_kept(container: Container, client: httpx.Client) -> None:
    job(container, "first")
    copies(container, "first", 60)
    with container.uow() as tx:
        labels = {"copy-007": {"owner": "ann", "team": "vision"}, "copy-055": {"owner": "bob"}}
        for name, own in labels.items():
            of_job = select(Job.id).where(Job.name == name).scalar_subquery()
            tx.session.execute(update(Session).where(Session.job_id == of_job).values(labels=own))
    for query, expected, heading in (
        ("?q=copy+055", ["copy-055"], "in 1 matching job, 35 % of 55 GPUs"),
        ("?q=VISION", ["copy-007"], "of 7 GPUs"),
        ("?owner=bob", ["copy-055"], "of 55 GPUs"),
        ("?label=team", ["copy-007"], "of 7 GPUs"),
        ("?label=team%3Dvision&sort=job", ["copy-007"], "of 7 GPUs"),
        ("?label=team%3Dspeech", [], "No job with data in the last 24 h matches"),
        ("?q=%25", [], "matches"),
        ("?show=none", [], "matches"),
        ("?q=first&show=slow", ["first"], "of 4 GPUs"),
    ):
        page = fleet_of(client, query)
        assert names(page, "jobs") == expected, query
        assert heading in page.one("h1").text.replace("\N{NO-BREAK SPACE}", " "), query
    line = fleet_of(client, "?q=VISION").one("p", "line").text
    assert line == "1 slow", "states are counted of the jobs that match"
    shows = fleet_of(client, "?q=copy-05&show=none").one("span", aria_label="Show").all("a")
    assert [one.text for one in shows] == ["All 10", "Slow 10", "No verdict 0", "Archive"]
    chips = fleet_of(client, "?labels=1&label=owner").all("a", "chip")
    assert [one.text for one in chips] == ["owner=bob", "owner=ann", "team=vision"]
    owners = [
        option.text for option in fleet_of(client).one("select", aria_label="Owner").all("option")
    ]
    assert owners == ["Any owner", "ann", "bob"]
    assert "owner" in fleet_of(client, "?owner=bob").columns("jobs")[10].lower()


def test_the_archive_is_a_list_of_its_own(container: Container, client: httpx.Client) -> None:
    job(container, "stays")
    job(container, "goes", timedelta(minutes=1))
    assert client.patch("/api/v1/jobs/goes", json={"archived": True}).status_code == 204
    assert names(fleet_of(client), "jobs") == ["stays"]
    archive = fleet_of(client, "?show=archived")
    assert names(archive, "jobs") == ["goes"]
    client.patch("/api/v1/jobs/goes", json={"archived": False})
    assert fleet_of(client, "?show=archived").one("h1").text == "The archive is empty"


def test_a_page_of_the_fleet_is_small_however_many_jobs_there_are(
    container: Container, client: httpx.Client
) -> None:
    job(container, "first")
    copies(container, "first", 300)
    answer = client.get("/")
    assert elements(answer.text) < 3000


def test_an_empty_fleet_names_a_demo_that_has_data_of_its_own(client: httpx.Client) -> None:
    words = fleet_of(client).text
    assert "paceline demo" in words
    assert "--server http" not in words.partition("No job yet?")[2]


def test_a_job_that_ended_costs_nothing_more_and_is_called_finished(
    container: Container, client: httpx.Client
) -> None:
    job(container, "ended", timedelta(hours=30), world=512)
    job(container, "lives")
    job(container, "ended-last-month", timedelta(days=40), world=4096)
    for name in ("ended", "ended-last-month"):
        assert client.post(f"/api/v1/jobs/{name}/finish").status_code == 204
    page = fleet_of(client)
    assert page.one("p", "line").text.endswith("2 finished")
    assert page.one("section", id="silent").text.startswith("2 jobs finished")
    week = fleet_of(client, "?range=7d")
    assert set(names(week, "jobs")) == {"ended", "lives"}
    assert "of 4 GPUs" in week.one("h1").text
    assert "Finished" in parse(client.get("/jobs/ended").text).one("p", "line").text
