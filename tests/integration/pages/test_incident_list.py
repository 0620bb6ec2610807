"""The list of incidents: filtered by its address, sorted, divided into pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.triage import assign_incidents
from tests.support.alerting import Alerting
from tests.support.html import parse

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container
    from tests.support.html import Element

NODE = SuspectedCause("slow_worker", ("node-17",), confidence=0.95, contribution=0.5)
# The confidence is too low for the rule of slow workers, and the rule of slow jobs waits for a
# second session.
STAGE = SuspectedCause("stage_imbalance", ("stage 1",), confidence=0.6, contribution=0.5)


@pytest.fixture
def alerting(container: Container) -> Alerting:
    """Store three jobs: a critical one, with a slowdown over 1.5, and two warnings."""
    made = Alerting(container)
    for _ in range(2):
        made.session(1.2, STAGE, job="vision-b", labels={"owner": "kim", "team": "vision"})
        made.session(1.6, NODE, job="llm-a", labels={"owner": "ann", "project": "50 % off_x"})
    made.session(1.4, STAGE, job="speech-c", labels={"team": "speech"})
    return made


def page(client: httpx.Client, path: str) -> Element:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return parse(answer.text)


def jobs(found: Element) -> list[str]:
    """Return the listed jobs in order."""
    section = found.one("section", aria_label="Open incidents")
    return [row[3].split()[0] for row in section.rows("inc")] if section.all("table") else []


def test_severity_comes_first_then_firing_incidents(
    alerting: Alerting, client: httpx.Client
) -> None:
    del alerting
    found = page(client, "/incidents")
    assert jobs(found) == ["llm-a", "vision-b", "speech-c"]
    rows = found.one("section", aria_label="Open incidents").rows("inc")
    assert [row[1:3] for row in rows] == [
        ["critical", "Firing"],
        ["warning", "Firing"],
        ["warning", "Pending"],
    ]


# Queries of the address, and the jobs that each lists.
ASKED: Final[tuple[tuple[str, list[str]], ...]] = (
    ("q=vision", ["vision-b"]),
    ("q=slow worker", ["llm-a"]),
    ("q=NODE-17", ["llm-a"]),
    ("q=stage kim", ["vision-b"]),
    ("q=%", ["llm-a"]),
    ("q=50 % off_", ["llm-a"]),
    ("q=off-x", []),
    ("q=it's \" ; --", []),
    ("state=firing", ["llm-a", "vision-b"]),
    ("state=pending", ["speech-c"]),
    ("state=nonsense", ["llm-a", "vision-b", "speech-c"]),
    ("severity=critical", ["llm-a"]),
    ("severity=warning&state=firing", ["vision-b"]),
    ("job=speech-c", ["speech-c"]),
    ("job=speech", []),
    ("host=node-17", ["llm-a"]),
    ("cause=stage_imbalance", ["vision-b", "speech-c"]),
    ("owner=kim", ["vision-b"]),
    ("project=50 % off_x", ["llm-a"]),
    ("label=team", ["vision-b", "speech-c"]),
    ("label=team=speech", ["speech-c"]),
    ("assignee=lee", ["speech-c"]),
    ("assignee=-", ["llm-a", "vision-b"]),
    ("sort=job", ["llm-a", "speech-c", "vision-b"]),
    ("sort=-job", ["vision-b", "speech-c", "llm-a"]),
    ("sort=slowdown", ["vision-b", "speech-c", "llm-a"]),
    ("sort=-since", ["speech-c", "vision-b", "llm-a"]),
    ("sort=nonsense", ["llm-a", "vision-b", "speech-c"]),
    ("range=1h", ["llm-a", "vision-b", "speech-c"]),
    ("range=nonsense", ["llm-a", "vision-b", "speech-c"]),
    ("from=2020-01-01", ["llm-a", "vision-b", "speech-c"]),
    ("to=2020-01-01", []),
    ("page=99", ["llm-a", "vision-b", "speech-c"]),
    ("job=\x00", ["llm-a", "vision-b", "speech-c"]),
)


def test_the_address_selects_what_is_listed(
    alerting: Alerting, client: httpx.Client, subtests: pytest.Subtests
) -> None:
    [third] = [one for one in alerting.incidents() if one.facts and one.facts.job == "speech-c"]
    assign_incidents(alerting.container, [third.id], to="lee", by=None)
    for query, expected in ASKED:
        with subtests.test(query=query):
            found = page(client, f"/incidents?{quote(query, safe='=&')}")
            assert jobs(found) == expected
            if not expected:
                assert found.one("h1").text == "No open incident matches"


def test_links_of_the_list_keep_its_filters(alerting: Alerting, client: httpx.Client) -> None:
    del alerting
    found = page(client, "/incidents?label=team&sort=job&severity=warning")
    section = found.one("section", aria_label="Open incidents")
    row = next(a for a in section.all("a") if a.text == "speech-c")
    opened = page(client, row.attributes["href"])
    assert jobs(opened) == ["speech-c", "vision-b"]
    assert "speech-c" in opened.one("section", id="chosen").one("h1").text
    kept = {
        (i.attributes["name"], i.attributes.get("value"))
        for i in opened.all("input")
        if i.attributes.get("type") == "hidden"
    }
    assert ("sort", "job") in kept


def test_resolved_incidents_have_a_list_of_their_own(
    alerting: Alerting, client: httpx.Client
) -> None:
    for job in ("llm-a", "vision-b"):
        alerting.fast(job)
    found = page(client, "/incidents?state=resolved")
    assert found.one("h1").text == "2 incidents are over"
    rows = found.one("section", aria_label="Resolved incidents").rows("inc")
    assert [row[1].split()[0] for row in rows] == ["vision-b", "llm-a"]
    narrowed = page(client, "/incidents?state=resolved&owner=ann")
    rows = narrowed.one("section", aria_label="Resolved incidents").rows("inc")
    assert [row[1].split()[0] for row in rows] == ["llm-a"]
    assert narrowed.all("section", aria_label="Open incidents") == []
