"""The pages, files and API of hosts over HTTP."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.integration.hosts.build import HOUR, reading, session
from tests.integration.pages.test_routes import analyzed
from tests.support.html import parse

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container
    from tests.support.html import Element


def page(client: httpx.Client, path: str) -> Element:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert " style=" not in answer.text
    return parse(answer.text)


def fill(container: Container) -> None:
    """Store a host that is slow repeatedly, one that was slow once, and one that never was."""
    for hours, slow in ((40, 1.0), (30, 1.6), (20, 1.6), (10, 1.4)):
        others = {"node-2": 1.2 if hours == 30 else 1.0, "node-3": 1.0}
        session(container, {"node-1": slow, **others}, ago=hours * HOUR)
    session(container, {"node-1": 1.3, "node-3": 1.0}, ago=HOUR, job="other")


def test_the_hosts_that_cost_again_and_again_come_first(
    container: Container, client: httpx.Client
) -> None:
    fill(container)
    found = page(client, "/hosts")
    assert found.one("h1").text.startswith("1 of 3 hosts costs")
    assert found.one("h1").text.endswith("GPU-hours in the last 30 d: node-1")
    [row] = found.rows("hosts")
    assert row[1].startswith("node-1")
    assert "2 of 2" in row
    assert "4 of 5" in row
    assert "Slow worker" in row
    assert found.rows("alike") == [
        [
            "node-2",
            "1 of 4 sessions, 1 job",
            "one session only, by slow worker; not named since: a second one would blame it",
        ]
    ]


def test_a_search_names_the_guilty_host_before_those_that_only_look_slow(
    container: Container, client: httpx.Client
) -> None:
    fill(container)
    session(container, {"node-3": reading(3.0, cause=None)}, ago=HOUR / 2, job="third")
    answer = client.get("/api/v1/search", params={"q": "node"}).json()["found"]
    assert [(row["name"], row["note"]) for row in answer if row["kind"] == "host"] == [
        ("node-1", "slow sessions: 4 of 5"),
        ("node-2", "slow sessions: 1 of 4"),
        ("node-3", "slow sessions: 0 of 6"),
    ]
    assert answer[0]["path"].endswith("/hosts/node-1")


def test_search_choice_order_and_time_are_in_the_address(
    container: Container, client: httpx.Client
) -> None:
    fill(container)
    found = page(client, "/hosts?show=all&sort=host&range=24h")
    assert [row[1].split()[0] for row in found.rows("hosts")] == ["node-1", "node-2", "node-3"]
    assert {
        field.attributes["name"]: field.attributes["value"]
        for field in found.all("input", type="hidden")
    } == {"show": "all", "sort": "host", "range": "24h"}
    ordered = found.one("th", aria_sort="ascending").one("a").attributes["href"]
    assert "range=24h" in ordered
    assert "show=all" in ordered
    assert page(client, "/hosts?q=unknown").one("p", "nothing").text == "No host matches."
    assert len(page(client, "/hosts?show=all&q=other").rows("hosts")) == 2


def test_an_installation_without_hosts_has_the_page_too(client: httpx.Client) -> None:
    found = page(client, "/hosts")
    assert found.one("h1").text == "No session named a host in the last 30 d"


def test_the_page_of_a_host_says_when_where_and_what_it_cost(
    container: Container, client: httpx.Client
) -> None:
    fill(container)
    found = page(client, "/hosts/node-1")
    assert found.one("h1").text.startswith(
        "node-1: GPU 5 slow in 4 of 5 sessions, in 2 jobs, which cost"
    )
    assert len(found.one("section", aria_label="Jobs").one("tbody").all("tr")) == 2
    assert len(found.one("section", aria_label="Sessions").one("tbody").all("tr")) == 5
    assert "GPU 5 reached 1.60×" in found.text
    assert "kubectl cordon node-1" in found.text
    assert "reason='Paceline: slow in 4 sessions'" in found.text
    assert "kubectl" not in page(client, "/hosts/node-2").text
    assert "not blamed" in page(client, "/hosts/node-2").one("h1").text
    assert "no cause named it" in page(client, "/hosts/node-3").one("h1").text
    assert "No session named node-2" in page(client, "/hosts/node-2?range=1h").one("h1").text


def test_a_host_is_not_removed_for_a_fault_of_the_job(
    container: Container, client: httpx.Client
) -> None:
    own = reading(1.4, cause="memory_fragmentation")
    for hours in (3, 2):
        session(container, {"node-1": own}, ago=hours * HOUR)
    session(container, {"node-1": 1.4}, ago=HOUR)
    assert "kubectl" not in page(client, "/hosts/node-1").text
    session(container, {"node-1": 1.4}, ago=HOUR / 2)
    assert "reason='Paceline: slow in 2 sessions'" in page(client, "/hosts/node-1").text


def test_a_repaired_host_need_not_be_cordoned_until_it_is_slow_again(
    container: Container, client: httpx.Client
) -> None:
    for hours in (9, 8):
        session(container, {"node-1": 1.6}, ago=hours * HOUR)
    assert "kubectl" in page(client, "/hosts/node-1").text
    at = (datetime.now(UTC) - 5 * HOUR).isoformat()
    client.post("/api/v1/hosts/node-1/repairs", json={"what": "replaced", "by": "ann", "at": at})
    assert "kubectl" not in page(client, "/hosts/node-1").text
    for hours in (3, 2):
        session(container, {"node-1": 1.6}, ago=hours * HOUR)
    assert "kubectl" in page(client, "/hosts/node-1").text


def test_the_page_of_a_host_tells_causes_of_the_job_from_those_of_the_machine(
    container: Container, client: httpx.Client
) -> None:
    own = {**reading(1.4, cause=None), "other_cause": "memory_fragmentation"}
    for hours in (3, 2):
        session(container, {"node-1": own}, ago=hours * HOUR)
    session(container, {"node-1": 1.0}, ago=HOUR)
    found = page(client, "/hosts/node-1")
    assert found.one("h1").text == (
        "node-1: memory fragmentation named it in 2 of 3 sessions; "
        "the job causes that, not the machine"
    )
    causes = [row[4] for row in found.one("section", aria_label="Sessions").rows("fleet")]
    assert causes == ["", *["Memory fragmentation of the job, not the machine"] * 2]
    [*_, second, first] = client.get("/api/v1/hosts/node-1").json()["sessions"]
    assert (first["cause"], second["other_cause"]) == (None, "memory_fragmentation")
    assert "kubectl" not in found.text


def test_a_host_that_no_session_names_is_not_there(client: httpx.Client) -> None:
    for path in ("/hosts/unknown", "/api/v1/hosts/unknown", "/hosts/unknown/sessions.csv"):
        assert client.get(path).status_code == 404
    answer = client.post("/api/v1/hosts/unknown/repairs", json={"what": "replaced"})
    assert answer.status_code == 404


def test_a_repair_is_noted_and_judged(container: Container, client: httpx.Client) -> None:
    for hours, slow in ((9, 1.6), (8, 1.6), (3, 1.0), (2, 1.0)):
        session(container, {"node-1": slow}, ago=hours * HOUR)
    done = (datetime.now(UTC) - 5 * HOUR).isoformat()
    body = {"what": "replaced GPU 5", "gpu": "5", "at": done, "by": "team hardware"}
    answer = client.post("/api/v1/hosts/node-1/repairs", json=body)
    assert answer.status_code == 201
    [repair] = answer.json()["repairs"]
    assert (repair["outcome"], repair["by"], repair["gpu"]) == ("helped", "team hardware", "5")
    assert (repair["slowdown_before"], repair["slowdown_after"]) == (1.6, 1.0)
    found = page(client, "/hosts/node-1")
    assert "The last repair helped: 1.60× → 1.00×" in found.text
    assert "helped" in found.one("table", "repairs").text
    assert "helped" in page(client, "/hosts?show=repaired").one("table", "hosts").text
    text = client.get("/hosts/node-1/repairs.csv").text
    assert [row["outcome"] for row in csv.DictReader(io.StringIO(text))] == ["helped"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"what": ""},
        {"what": "x", "at": "2030-01-01T00:00:00"},
        {"what": "x", "at": "2199-01-01T00:00:00Z"},
        {"what": "x", "at": "0001-01-01T00:00:00+14:00"},
        {"what": "x", "who": "me"},
    ],
)
def test_a_repair_that_says_too_little_or_lies_ahead_is_refused(
    container: Container, client: httpx.Client, body: dict[str, str]
) -> None:
    session(container, {"node-1": 1.4}, ago=HOUR)
    assert client.post("/api/v1/hosts/node-1/repairs", json=body).status_code in {409, 422}
    assert client.get("/hosts/node-1").status_code == 200


def test_the_api_lists_hosts_as_the_page_does(container: Container, client: httpx.Client) -> None:
    fill(container)
    found = client.get("/api/v1/hosts").json()
    assert [host["host"] for host in found["hosts"]] == ["node-1", "node-2", "node-3"]
    assert [host["blamed"] for host in found["hosts"]] == [True, False, False]
    one = client.get("/api/v1/hosts", params={"show": "blamed", "limit": 1}).json()
    assert (one["total"], one["hosts"][0]["gpus"]) == (1, ["5"])
    detail = client.get("/api/v1/hosts/node-1").json()
    assert len(detail["sessions"]) == 5
    assert detail["sessions"][0]["gpus"][1]["slow"]
    since = (datetime.now(UTC) - 5 * HOUR).isoformat()
    detail = client.get("/api/v1/hosts/node-1", params={"from": since}).json()
    assert [one["job"] for one in detail["sessions"]] == ["other"]


def test_every_table_is_a_file_too(container: Container, client: httpx.Client) -> None:
    fill(container)
    for path, rows in {
        "/hosts.csv": 1,
        "/hosts.csv?show=all": 3,
        "/hosts/node-1/sessions.csv": 5,
        "/hosts/node-1/gpus.csv": 10,
        "/hosts/node-1/repairs.csv": 0,
    }.items():
        answer = client.get(path)
        assert answer.headers["content-type"].startswith("text/csv")
        assert len(list(csv.DictReader(io.StringIO(answer.text)))) == rows, path
    assert client.get("/hosts/node-1/nonsense.csv").status_code == 404


def test_the_file_of_hosts_says_what_the_list_does_and_holds_no_formula(
    container: Container, client: httpx.Client
) -> None:
    fill(container)
    session(container, {'=sum("a,b")': 1.0}, ago=20 * HOUR, job="odd")
    until = datetime.now(UTC) - 5 * HOUR
    for path, asked in (
        ("/hosts.csv?show=all&sort=-worst", {}),
        (
            f"/hosts.csv?show=all&sort=-worst&from=2020-01-01T00:00&to={until:%Y-%m-%dT%H:%M}",
            {"to": f"{until:%Y-%m-%dT%H:%M}:00Z"},
        ),
    ):
        listed = client.get("/api/v1/hosts", params={"sort": "-worst", **asked}).json()["hosts"]
        rows = list(csv.DictReader(io.StringIO(client.get(path).text)))
        assert [row["host"].removeprefix("'") for row in rows] == [one["host"] for one in listed]
        assert '\'=sum("a,b")' in {row["host"] for row in rows}
        for row, one in zip(rows, listed, strict=True):
            assert row["gpus_named"] == " ".join(one["gpus"])
            assert row["causes"] == " ".join(one["causes"])
            assert datetime.fromisoformat(row["last_seen"]).astimezone(
                UTC
            ) == datetime.fromisoformat(one["last_seen"])
            for name in ("blamed", "guessed"):
                assert row[name] == str(one[name]).lower()
            for name in ("slow_sessions", "sessions", "slow_jobs", "jobs", "slowdown_worst"):
                assert float(row[name]) == one[name]
            assert float(row["slowdown_now"]) == one["slowdown_now"]
            assert float(row["cost_gpu_hours"]) == pytest.approx(one["cost_gpu_hours"], rel=0.01)
            computing = row["computing_worst"]
            assert (float(computing) if computing else None) == one["computing_worst"]


def test_an_analyzed_session_leads_to_its_host(container: Container, client: httpx.Client) -> None:
    for _ in range(2):
        analyzed(container)
    found = page(client, "/hosts")
    [row] = found.rows("hosts")
    assert "2 of 2" in row
    host = row[1].split()[0]
    assert "slow in 2 of 2 sessions" in page(client, f"/hosts/{host}").one("h1").text
