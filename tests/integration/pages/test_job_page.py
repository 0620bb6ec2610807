"""The page of a job: its incidents, all of its sessions, and the begin of its slowdown."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from app.analysis.budget.split import Part, Shares
from app.jobs.models import Job
from app.sessions.models.tables import Session, StoredReport, StoredVerdict
from benchmarks.support.stored import made_verdict
from tests.integration.pages.test_routes import analyzed
from tests.support.alerting import Alerting
from tests.support.html import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from app.platform.container import Container
    from tests.support.html import Element


def sessions(
    container: Container,
    found: Sequence[float | str],
    *,
    job: str = "llm",
    every: timedelta = timedelta(minutes=1),
) -> list[uuid.UUID]:
    """Store sessions of a job, oldest first, by slowdown, or by state if without a verdict."""
    with container.uow() as tx:
        owner = Job(name=job)
        tx.session.add(owner)
        tx.session.flush()
        rows = [
            Session(
                id=uuid.uuid4(),
                job_id=owner.id,
                attempt=1,
                number=number,
                content_sha256=hashlib.sha256(uuid.uuid4().bytes).digest(),
                state=what if isinstance(what, str) else "analyzed",
                received_at=tx.now - every * (len(found) - number),
                meta={},
                dp=2,
                pp=2,
                tp=1,
                cp=1,
                vpp=1,
                world=4,
                trace_format="parquet",
                body_bytes=1,
                operations=number,
                steps=12,
                trace_blob=uuid.uuid4(),
                reason="too short" if what == "discarded" else None,
            )
            for number, what in enumerate(found, start=1)
        ]
        tx.session.add_all(rows)
        tx.session.flush()
        tx.session.add_all(
            StoredVerdict(session_id=row.id, document=made_verdict(what))
            for row, what in zip(rows, found, strict=True)
            if not isinstance(what, str)
        )
        return [row.id for row in rows]


def page(client: httpx.Client, path: str) -> Element:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return parse(answer.text)


def numbers(found: Element) -> list[int]:
    return [int(row[0]) for row in found.rows("fleet")]


def link(found: Element, rel: str) -> str:
    return found.one("a", "btn", rel=rel).attributes["href"]


def test_every_session_of_a_job_can_be_reached(container: Container, client: httpx.Client) -> None:
    sessions(container, [1.01, *[1.3] * 129])
    first = page(client, "/jobs/llm")
    assert numbers(first) == list(range(130, 80, -1))
    assert "Sessions 1 to 50 of 130" in first.text
    second = page(client, link(first, "next"))
    last = page(client, link(second, "next"))
    assert numbers(last) == list(range(30, 0, -1))
    assert "Sessions 101 to 130 of 130" in last.text
    assert numbers(page(client, link(second, "prev"))) == numbers(first)
    assert numbers(page(client, "/jobs/llm?page=99")) == numbers(last)
    assert "Slow since session 2: 1.30× in session 130" in first.text
    assert "session 2, was 1.01×" in first.one("p", "line").text


def test_slow_since_the_first_session_is_said_of_the_first_alone(
    container: Container, client: httpx.Client
) -> None:
    sessions(container, ["discarded", 1.3, 1.2])
    assert "Slow since the first session: 1.20× in session 3" in page(client, "/jobs/llm").text
    sessions(container, [1.3, 1.02, 1.3], job="again")
    assert "Slow since session 3" in page(client, "/jobs/again").text
    sessions(container, [1.3, 1.02], job="over")
    over = page(client, "/jobs/over")
    assert "1 of 2 sessions were slow; session 2 is not" in over.text
    assert "since" not in over.one("p", "line").text


@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("stragglers", "waiting"),
        ("between", "between_steps_above"),
        ("together", "slow_together"),
    ],
)
def test_sessions_are_sorted_by_what_is_lost_of_their_time(
    container: Container, client: httpx.Client, column: str, part: str
) -> None:
    found = sessions(container, [1.2, "discarded", 1.1, 1.3])
    of_parts = dict.fromkeys((one.value for one in Part), 0.0)
    with container.uow() as tx:
        for number, share in ((1, 0.2), (4, 0.4)):
            verdict = tx.session.get_one(StoredVerdict, found[number - 1])
            shares = Shares(**{**of_parts, "computing": 1 - share, part: share})
            verdict.document = replace(verdict.document, shares=shares)
    by_share = page(client, f"/jobs/llm?sort=-{column}")
    assert numbers(by_share)[:2] == [4, 1]
    assert numbers(page(client, f"/jobs/llm?sort={column}"))[:2] == [1, 4]


def test_sessions_are_sorted_over_all_pages(container: Container, client: httpx.Client) -> None:
    sessions(container, [1.5, *[1.01] * 60, "no_verdict"])
    first = page(client, "/jobs/llm")
    [slowdown] = [head.all("a")[0] for head in first.all("th", "num") if "Slowdown" in head.text]
    assert slowdown.attributes["href"] == "/jobs/llm?sort=-slowdown"
    by_slowdown = page(client, slowdown.attributes["href"])
    assert numbers(by_slowdown)[0] == 1
    [turned] = [head for head in by_slowdown.all("th") if head.attributes.get("aria-sort")]
    assert turned.attributes["aria-sort"] == "descending"
    assert turned.all("a")[0].attributes["href"] == "/jobs/llm?sort=slowdown"
    rest = page(client, link(by_slowdown, "next"))
    assert numbers(rest)[-1] == 62, "without a value it comes last"
    assert numbers(page(client, "/jobs/llm?sort=nonsense")) == numbers(first)


def test_a_chosen_time_holds_for_figure_table_and_address(
    container: Container, client: httpx.Client
) -> None:
    sessions(container, [1.3] * 60, every=timedelta(hours=1))
    found = page(client, "/jobs/llm?range=24h&sort=session")
    assert numbers(found) == list(range(37, 61))
    assert "24 sessions in the last 24 h" in found.one("p", "line").text
    [session] = [head for head in found.all("th") if head.text == "Session"]
    assert session.all("a")[0].attributes["href"] == "/jobs/llm?range=24h&sort=-session"
    old = page(client, "/jobs/llm?to=2020-01-01T00:00Z")
    assert "No session in the chosen time" in old.text


def test_a_job_names_its_incidents_and_where_to_act(
    container: Container, client: httpx.Client
) -> None:
    alerting = Alerting(container)
    alerting.slow()
    found = page(client, "/jobs/llm")
    line = found.one("span", aria_label="Incidents of this job")
    assert line.text.startswith("Firing Slow worker: node-7")
    [incident] = alerting.incidents()
    assert line.all("a")[0].attributes["href"] == f"/incidents/{incident.id}"
    act = found.one("div", "act")
    assert act.attributes["data-incident"] == str(incident.id)
    assert "Acknowledge" in act.text
    sessions(container, [1.01], job="well")
    assert page(client, "/jobs/well").all("div", "act") == []


@pytest.mark.parametrize(
    ("before", "latest", "said"),
    [
        ([], 1.01, "Before First session nothing to compare with"),
        (["discarded"], 1.01, "Before No verdict session 1: discarded"),
        (["discarded", "failed"], 1.01, "Before No verdict session 2: analysis failed"),
        ([1.02, "discarded"], 1.01, "Before 1.02× session 1, 2 min earlier"),
        ([1.02, 1.3], 1.3, "Since Session 2"),
        (["discarded"], 1.3, "Since Session 2"),
    ],
)
def test_a_session_shows_the_one_before(
    container: Container,
    client: httpx.Client,
    before: list[float | str],
    latest: float,
    said: str,
) -> None:
    other = analyzed(container, "other")
    ids = sessions(container, [*before, latest])
    with container.uow() as tx:
        # The report of another job, because a report does not contain earlier sessions.
        made = tx.session.get_one(StoredReport, other.session)
        blobs = {"document_blob": made.document_blob, "heatmap_blob": made.heatmap_blob}
        tx.session.add(StoredReport(session_id=ids[-1], **blobs))
    found = page(client, f"/sessions/{ids[-1]}")
    assert said in found.text


def test_a_slow_job_is_compared_with_its_last_good_session(
    container: Container, client: httpx.Client
) -> None:
    ids = sessions(container, [1.02, 1.03, "no_verdict", 1.3, 1.31])
    links = page(client, "/jobs/llm?range=1h").all("a")
    [link] = [one for one in links if "last good" in one.text]
    assert link.attributes["href"] == f"/compare?a={ids[1]}&b={ids[4]}"
    sessions(container, [1.3, 1.02], job="recovered")
    sessions(container, [1.3, 1.31], job="never-good")
    for job in ("recovered", "never-good"):
        assert "last good" not in page(client, f"/jobs/{job}").text


def test_the_effect_of_a_deployment_is_one_click_away(
    container: Container, client: httpx.Client
) -> None:
    hour = timedelta(hours=1)
    ids = sessions(container, [1.02, 1.01, 1.3, 1.31], every=hour)
    with container.reading() as tx:
        now = tx.now
    for text, ago in (("image 7", 1.5), ("before all", 90), ("image 8", 0)):
        body = {"text": text, "kind": "deployment", "at": (now - ago * hour).isoformat()}
        assert client.post("/api/v1/jobs/llm/notes", json=body).status_code == 201
    rows = page(client, "/jobs/llm").one("table", "marks").one("tbody").all("tr")
    found = {row.all("td", "grow")[0].text: row.all("a", "within") for row in rows}
    [link] = found["image 7 before and after"]
    assert link.attributes["href"] == f"/compare?a={ids[1]}&b={ids[2]}"
    assert found["before all"] == [], "nothing was measured before it"
    assert found["image 8"] == [], "nothing is measured since"


def test_links_of_the_latest_session_lead_from_the_page(
    container: Container, client: httpx.Client
) -> None:
    ids = sessions(container, [1.2, 1.3])
    said = {
        "<b>W&B</b>": "https://wandb.ai/run?a=1&b=2",
        # As an earlier version may have stored it, without validation.
        "script": "javascript:alert(1)",
    }
    with container.uow() as tx:
        tx.session.get_one(Session, ids[0]).meta = {"links": {"old": "https://old.example"}}
        tx.session.get_one(Session, ids[1]).meta = {"links": said}
    page = client.get("/jobs/llm").text
    link = parse(page).one("a", href="https://wandb.ai/run?a=1&b=2")
    assert link.text == "<b>W&B</b>"
    assert "noopener" in str(link.attributes["rel"])
    assert "javascript:" not in page
    assert "old.example" not in page
