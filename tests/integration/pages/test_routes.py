"""Pages, exports and static files over HTTP, on a real database."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

import pytest

from app.platform.tasks.runs import claim
from app.sessions.analyze import analyze_session
from app.sessions.history import fleet
from tests.support.reads import read
from tests.support.sessions import Stored, small_trace, store

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container

UNKNOWN = "00000000-0000-4000-8000-000000000000"


def analyzed(container: Container, job: str = "llm") -> Stored:
    stored = store(container, small_trace(), job=job)
    held = claim(container, stored.run)
    assert held is not None
    analyze_session(container, held)
    return stored


def test_the_fleet_holds_every_job_with_its_latest_sessions_oldest_first(
    container: Container,
) -> None:
    for _ in range(3):
        store(container, small_trace(), job="many")
    store(container, small_trace(), job="one")
    found = {job.name: job for job in read(container, fleet, per_job=2).jobs}
    assert [session.number for session in found["many"].sessions] == [2, 3]
    assert found["many"].latest.number == 3
    assert [session.number for session in found["one"].sessions] == [1]


def test_the_fleet_can_be_asked_for_one_job_or_none(container: Container) -> None:
    store(container, small_trace(), job="here")
    assert [job.name for job in read(container, fleet, job="here").jobs] == ["here"]
    assert read(container, fleet, job="nowhere").jobs == ()


def test_pages_are_never_stored_and_name_only_this_server(
    container: Container, client: httpx.Client
) -> None:
    stored = analyzed(container)
    for path in ("/", "/jobs/llm", f"/sessions/{stored.session}"):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["content-type"].startswith("text/html")
        found = re.findall(r"""(?:href|src|action)=["']([a-z]+:)?//[^"']*""", response.text)
        assert found == []
        assert "<style" not in response.text
        assert not re.search(r"\son[a-z]+=", response.text)
        assert not re.search(r"\sstyle=", response.text)


def test_an_address_without_matches_is_not_an_error(
    container: Container, client: httpx.Client
) -> None:
    stored = analyzed(container)
    for query in ("step=nonsense", "step=-1&dp=x&pp=", f"dp={10**30}&pp=0", "step=٣"):
        assert client.get(f"/sessions/{stored.session}?{query}").status_code == 200


@pytest.mark.parametrize("path", [f"/sessions/{UNKNOWN}", "/sessions/nonsense", "/jobs/unknown"])
def test_a_page_that_is_not_there_is_a_page_all_the_same(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert "There is no" in response.text
    assert response.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("name", ["workers", "steps", "optypes", "microbatches"])
def test_the_data_of_every_figure_is_a_file(
    container: Container, client: httpx.Client, name: str
) -> None:
    stored = analyzed(container)
    response = client.get(f"/sessions/{stored.session}/{name}.csv")
    assert response.status_code == 200
    assert response.headers["content-disposition"].endswith(f'session-1-{name}.csv"')
    assert len(list(csv.DictReader(io.StringIO(response.text)))) > 1


def test_a_steps_map_is_a_file_of_its_own(container: Container, client: httpx.Client) -> None:
    stored = analyzed(container)
    report = client.get(f"/api/v1/sessions/{stored.session}/report").json()
    step = report["steps"]["analyzed"][4]
    response = client.get(f"/sessions/{stored.session}/workers.csv", params={"step": step})
    assert f"step-{step}" in response.headers["content-disposition"]
    mean = client.get(f"/sessions/{stored.session}/workers.csv")
    assert response.text != mean.text


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"/sessions/{UNKNOWN}/workers.csv", "not_found"),
        ("/sessions/{session}/nothing.csv", "not_found"),
        ("/sessions/{session}/workers.csv?step=-7", "not_analyzed"),
    ],
)
def test_a_file_that_is_not_there_is_a_problem(
    container: Container, client: httpx.Client, path: str, code: str
) -> None:
    stored = analyzed(container)
    response = client.get(path.format(session=stored.session))
    assert response.status_code == 404
    assert response.json()["code"].endswith(code)


def test_a_session_without_a_report_has_no_files_yet(
    container: Container, client: httpx.Client
) -> None:
    stored = store(container, small_trace())
    response = client.get(f"/sessions/{stored.session}/workers.csv")
    assert response.json()["code"] == "report.not_ready"


def test_static_files_are_immutable_compressed_and_all_there(client: httpx.Client) -> None:
    page = client.get("/").text
    addresses = set(re.findall(r'"(/static/[^"]+)"', page))
    assert len(addresses) >= 5
    for address in addresses:
        response = client.get(address, headers={"Accept-Encoding": "gzip"})
        assert response.status_code == 200, address
        assert "immutable" in response.headers["cache-control"]
        assert response.headers["content-encoding"] == "gzip"
    assert client.get("/static/0123456789abcdef/css/paceline.css").status_code == 404
