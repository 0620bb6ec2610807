"""The page of incidents, and incidents on other pages."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, update

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.models.rules import DEMO_LABELS
from app.jobs.models import Job
from app.sessions.models.tables import Session
from benchmarks.support.receiver import Reply
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.html import parse
from tests.support.project import build
from tests.support.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.support.html import Element

STAGE = SuspectedCause("stage_imbalance", ("stage 1",), confidence=0.6, contribution=0.5)


@pytest.fixture
def container(settings: Settings) -> Iterator[Container]:
    """Yield a container that may send to this machine."""
    built = build(settings.model_copy(update={"alert_allowed_networks": LOOPBACK}))
    yield built
    built.close()


@pytest.fixture
def alerting(container: Container) -> Alerting:
    return Alerting(container)


def page(client: httpx.Client, path: str) -> Element:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return parse(answer.text)


def open_lines(found: Element) -> list[list[str]]:
    return found.one("section", aria_label="Open incidents").rows("inc")


def nav_count(found: Element) -> str:
    return "".join(count.text for count in found.one("nav").all("span", "count"))


def test_no_data_borrows_nothing_from_the_last_session(
    alerting: Alerting, client: httpx.Client
) -> None:
    for _ in range(3):
        alerting.session()
    alerting.silent()
    found = page(client, "/incidents")
    [line] = [line for line in open_lines(found) if "No data" in line[3]]
    assert line[1:8] == ["warning", "Firing", "llm No data", "none", "", "", ""]
    silent = next(one.id for one in alerting.incidents() if one.cause == "no_data")
    found = page(client, f"/incidents/{silent}")
    about = found.one("section", id="chosen").text
    assert "No session since session 3, 1 h ago" in about
    assert "Firing: no session since session 3" in about
    assert "1.30" not in about
    told = client.get("/api/v1/incidents").json()["incidents"]
    [silent] = [one for one in told if one["cause"] == "no_data"]
    assert (silent["facts"]["number"], silent["facts"]["slowdown"]) == (3, None)
    assert silent["facts"]["fix"] is None


def test_no_data_hides_no_other_incident(alerting: Alerting, client: httpx.Client) -> None:
    for _ in range(3):
        alerting.session(1.3, SuspectedCause("slow_worker", ("node-7",), confidence=0.95), STAGE)
    alerting.slow("other")
    before = page(client, "/incidents")
    assert len(open_lines(before)) == 2
    assert nav_count(before) == "2 firing"
    alerting.silent()
    found = page(client, "/incidents")
    assert sorted(line[3] for line in open_lines(found)) == [
        "llm No data",
        "llm Slow worker: node-7",
        "other Slow worker: node-of-other",
    ]
    assert nav_count(found) == "3 firing"


def test_jobs_that_went_silent_together_are_one_line_and_one_page(
    alerting: Alerting, client: httpx.Client
) -> None:
    for job in ("a", "b", "c"):
        for _ in range(4):
            alerting.session(1.0, job=job)
    for job in ("a", "b", "c"):
        alerting.silent(job, timedelta(hours=3))
    found = page(client, "/incidents")
    assert nav_count(found) == "1 firing"
    first, *inside = open_lines(found)
    assert "3 jobs silent at the same time" in first[3]
    assert [line[2] for line in inside] == ["a No data", "b No data", "c No data"]
    lead = next(one.id for one in alerting.incidents())
    own = page(client, f"/incidents/{lead}")
    assert "the network or the collector?" in own.one("h1").text
    assert "3 jobs went silent at the same time" in own.text


def test_the_silence_of_a_finished_job_is_no_incident(
    alerting: Alerting, client: httpx.Client
) -> None:
    for _ in range(4):
        alerting.session(1.0, job="ended")
    assert client.post("/api/v1/jobs/nowhere/finish").status_code == 404
    assert client.post("/api/v1/jobs/ended/finish").status_code == 204
    alerting.silent("ended", timedelta(days=3))
    assert nav_count(page(client, "/incidents")) == ""
    [quiet] = page(client, "/").one("section", id="silent").one("tbody").all("tr")
    assert "Finished" in quiet.text


def test_a_session_names_each_incident_and_has_one_place_to_act(
    alerting: Alerting, client: httpx.Client
) -> None:
    causes = [SuspectedCause("slow_worker", (f"node-{n}",), confidence=0.95) for n in range(4)]
    for _ in range(3):
        session = alerting.session(1.3, *causes)
    assert len(alerting.incidents()) == 4
    found = page(client, f"/sessions/{session}")
    assert len([b for b in found.all("button") if b.text == "Acknowledge"]) == 1
    line = found.one("span", aria_label="Incidents of this job")
    assert len(line.all("a")) == 3
    assert line.text.endswith("1 more open")
    alerting.silent()
    found = page(client, f"/sessions/{session}")
    line = found.one("span", aria_label="Incidents of this job")
    assert (len(line.all("a")), line.text.endswith("2 more open")) == (3, True)
    assert len([b for b in found.all("button") if b.text == "Acknowledge"]) == 1


def test_no_name_is_asked_for_where_nothing_can_be_done(
    alerting: Alerting, client: httpx.Client
) -> None:
    session = alerting.session(1.3, STAGE)
    assert alerting.incident().state == "pending"
    found = page(client, f"/sessions/{session}")
    assert "Pending" in found.one("p", "line").text
    assert found.all("label", "who") == []
    # Only the incident's own page has the button that resolves it.
    own = page(client, f"/incidents/{alerting.incident().id}")
    assert len(own.one("section", id="chosen").all("label", "who")) == 1
    client.post(f"/api/v1/incidents/{alerting.incident().id}/resolve", json={}).raise_for_status()
    # An incident that a user resolved can be reopened.
    over = page(client, f"/incidents/{alerting.incident().id}")
    assert len(over.one("section", id="chosen").all("label", "who")) == 1


def test_an_incident_that_ended_by_itself_has_no_buttons(
    alerting: Alerting, client: httpx.Client
) -> None:
    alerting.slow()
    for _ in range(5):
        alerting.session(1.0)
    assert alerting.incident().state == "resolved"
    over = page(client, f"/incidents/{alerting.incident().id}").one("section", id="chosen")
    assert over.all("label", "who") == []
    assert [button.text for button in over.all("button") if "data-do" in button.attributes] == []


@pytest.mark.parametrize(
    ("status", "heading", "note"),
    [
        (204, "The message that was sent", "To hook; the same text to every channel"),
        (400, "The undelivered message", "Not delivered to hook"),
        (503, "A message that has not been delivered", "Still trying: hook"),
    ],
)
def test_a_message_is_called_sent_where_it_was(
    alerting: Alerting, client: httpx.Client, status: int, heading: str, note: str
) -> None:
    with Receiver(lambda _: Reply(status)) as receiver:
        alerting.channel(receiver)
        alerting.slow()
        alerting.pass_and_work()
    said = page(client, "/incidents").one("section", aria_label="Message")
    assert said.one("h2").text == heading
    assert note in said.text


def test_the_demo_that_ends_is_no_incident(alerting: Alerting) -> None:
    for job in ("demo", "real"):
        for _ in range(3):
            alerting.session(1.0, job=job)
    with alerting.container.uow() as tx:
        of_demo = select(Job.id).where(Job.name == "demo").scalar_subquery()
        tx.session.execute(
            update(Session)
            .where(Session.job_id == of_demo)
            .values(meta={"labels": dict(DEMO_LABELS)})
        )
    for job in ("demo", "real"):
        alerting.silent(job)
    [incident] = alerting.incidents()
    assert incident.facts is not None
    assert (incident.cause, incident.facts.job) == ("no_data", "real")


def test_an_incident_says_its_cost_whichever_session_showed_it_last(
    alerting: Alerting, client: httpx.Client
) -> None:
    alerting.slow()
    # This session shows the cause again, but adds no event to the incident's history.
    alerting.session(1.3)
    [incident] = client.get("/api/v1/incidents").json()["incidents"]
    facts = page(client, f"/incidents/{incident['id']}").text
    assert "Costs" in facts
