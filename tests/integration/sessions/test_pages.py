"""The comparison of two sessions over HTTP: page, CSV files and API."""

from __future__ import annotations

import csv
import io
import uuid
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace
from app.platform.tasks.runs import claim
from app.sessions.analyze import analyze_session
from tests.support.html import parse
from tests.support.sessions import refused_trace, store

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container
    from tests.support.html import Element


@cache
def trace(slow: float = 1.0, *, dp: int = 2) -> Trace:
    """Return a session of a job in which worker (1, 1) is slow by a factor."""
    job = JobModel(Sizes(dp=dp, pp=2), microbatches=4, steps=12)
    return synthesize(job, [SlowWorker((1, 1), slow)] if slow > 1 else [], seed=1).trace


def analyzed(container: Container, what: Trace, job: str = "llm") -> uuid.UUID:
    stored = store(container, what, job=job)
    held = claim(container, stored.run)
    assert held is not None
    analyze_session(container, held)
    return stored.session


def page(client: httpx.Client, path: str) -> Element:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert " style=" not in answer.text
    return parse(answer.text)


def test_the_gain_of_a_fix_is_compared_with_its_prediction(
    container: Container, client: httpx.Client
) -> None:
    a = analyzed(container, trace(1.8))
    fix = max(
        client.get(f"/api/v1/sessions/{a}/report").json()["recommendations"],
        key=lambda one: one["predicted_gain"],
    )
    order = {"action": fix["action"], "title": fix["title"]}
    client.post(f"/api/v1/sessions/{a}/fixes", json=order).raise_for_status()
    b = analyzed(container, trace())
    found = page(client, f"/compare?a={a}&b={b}")
    heading = found.one("h1").text
    assert heading.startswith("Steps are ")
    assert "faster" in heading
    assert "the best fix was predicted to bring" in heading
    assert "Slow worker disappeared, none appeared" in found.text
    assert found.rows("changes")[0][-1] == "gone"
    assert "p < 0.001" in found.text
    assert "Worker (1, 1) changed most" in found.text
    turned = page(client, f"/compare?a={b}&b={a}").one("h1").text
    assert "slower than in session 2" in turned


def test_a_prediction_is_held_against_nothing_where_no_fix_was_applied(
    container: Container, client: httpx.Client
) -> None:
    a, b = analyzed(container, trace(1.8)), analyzed(container, trace(1.8))
    found = page(client, f"/compare?a={a}&b={b}")
    assert "predicted" not in found.one("h1").text
    assert "not marked as applied" in found.text
    assert "measured" not in found.text


def test_a_straggler_that_moved_is_shown_as_moved(
    container: Container, client: httpx.Client
) -> None:
    first = trace(1.8)
    hosts = {rank: f"other-{rank}" for rank in first.meta.hosts}
    elsewhere = replace(first, meta=replace(first.meta, hosts=hosts))
    a, b = analyzed(container, first), analyzed(container, elsewhere)
    found = page(client, f"/compare?a={a}&b={b}")
    rank = next(rank for rank, host in hosts.items() if f"→ {host}" in found.text)
    assert f"{first.meta.hosts[rank]} → {hosts[rank]}" in found.text
    assert "No cause disappeared or appeared" in found.text


def test_a_resolved_incident_leads_to_the_sessions_before_and_after_it(
    container: Container, client: httpx.Client
) -> None:
    for slow in (1.8, 1.8, 1.0, 1.0, 1.0):
        analyzed(container, trace(slow))
    over = page(client, "/incidents").one("section", aria_label="Resolved incidents")
    address = next(
        link.attributes["href"] for link in over.all("a") if "/compare" in link.attributes["href"]
    )
    found = page(client, address)
    assert "of the predicted gain was realised" in found.text
    assert "faster" in found.one("h1").text
    chosen = page(client, f"/incidents/{address.rpartition('=')[2]}")
    host = next(link for link in chosen.all("a") if link.attributes["href"].startswith("/hosts/"))
    assert "slow in 2 of 5 sessions" in page(client, host.attributes["href"]).one("h1").text


def test_two_sessions_alike_show_no_difference(container: Container, client: httpx.Client) -> None:
    a, b = analyzed(container, trace()), analyzed(container, trace())
    found = page(client, f"/compare?a={a}&b={b}")
    assert found.one("h1").text.endswith("no difference can be shown")
    assert "None of" in found.one("section", aria_label="Metadata").text


def test_the_address_of_a_job_compares_its_last_two_sessions(
    container: Container, client: httpx.Client
) -> None:
    for slow in (1.0, 1.8, 1.0):
        analyzed(container, trace(slow))
    assert "/compare?job=llm" in client.get("/jobs/llm").text
    found = page(client, "/compare?job=llm")
    assert "faster" in found.one("h1").text
    assert len(found.all("select")[0].all("option")) == 3
    assert client.get("/compare?job=unknown").status_code == 404


def test_sessions_of_other_shapes_have_no_map_but_all_else(
    container: Container, client: httpx.Client
) -> None:
    a, b = analyzed(container, trace()), analyzed(container, trace(dp=4), "other")
    found = page(client, f"/compare?a={a}&b={b}")
    assert "no difference can be drawn" in found.text
    assert found.all("canvas") == []
    assert ["dp", "2", "4"] in found.rows("fields")


def test_without_a_verdict_only_the_metadata_are_compared(
    container: Container, client: httpx.Client
) -> None:
    a, b = analyzed(container, trace()), analyzed(container, refused_trace())
    found = page(client, f"/compare?a={a}&b={b}")
    assert found.one("h1").text.startswith("At least one session has no verdict")
    assert "session 2 is discarded" in found.text


def test_an_unknown_session_cannot_be_compared(container: Container, client: httpx.Client) -> None:
    a = analyzed(container, trace())
    for query in (f"a={a}&b={uuid.uuid4()}", f"a={a}", "a=x&b=y", f"incident={uuid.uuid4()}"):
        assert client.get(f"/compare?{query}").status_code == 404
    assert "Choose two sessions" in page(client, "/compare").one("h1").text
    assert client.get(f"/api/v1/sessions/{a}/compare/{uuid.uuid4()}").status_code == 404


def test_every_table_is_a_file_and_the_api_says_the_same(
    container: Container, client: httpx.Client
) -> None:
    a, b = analyzed(container, trace(1.8)), analyzed(container, trace())
    for name, rows in {"workers": 4, "steps": 24, "causes": 1, "metadata": 0}.items():
        answer = client.get(f"/compare/{name}.csv?a={a}&b={b}")
        assert answer.headers["content-type"].startswith("text/csv")
        assert len(list(csv.DictReader(io.StringIO(answer.text)))) >= rows, name
    assert client.get(f"/compare/nonsense.csv?a={a}&b={b}").status_code == 404
    found = client.get(f"/api/v1/sessions/{a}/compare/{b}").json()
    assert found["step_times"]["change"] < -0.1
    assert found["step_times"]["p"] < 0.001
    assert found["causes"][0] | {"before": None} == {
        "cause": "slow_worker",
        "before": None,
        "after": None,
        "change": "gone",
    }
