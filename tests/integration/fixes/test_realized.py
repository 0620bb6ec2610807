"""Applied fixes: the next session measures the gain, which is compared with the prediction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.model import Sizes
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from tests.support.alerting import Alerting
from tests.support.html import parse
from tests.support.sessions import session_row, small_trace, store

if TYPE_CHECKING:
    import uuid

    import httpx

    from tests.integration.api.conftest import Installation


@cache
def body(factor: float = 1.8, seed: int = 1) -> bytes:
    """Return a session of a job whose worker (1, 1) takes `factor` times as long."""
    job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
    slow = [SlowWorker((1, 1), factor)] if factor > 1 else []
    return to_parquet(synthesize(job, slow, seed=seed).trace)


def send(
    installation: Installation,
    content: bytes,
    hosts: Mapping[int, str] | None = None,
    **meta: Any,  # noqa: ANN401 - metadata
) -> str:
    document = {"dp": 2, "pp": 2, "world": 4, "hosts": hosts or {}, **meta}
    answer = installation.client.post(
        "/api/v1/jobs/llm/sessions",
        files={
            "meta": ("meta.json", json_of(document)),
            "trace": ("trace.parquet", content, "application/vnd.apache.parquet"),
        },
    )
    assert answer.status_code == 202, answer.text
    installation.analyze_all()
    found: str = answer.json()["session"]
    return found


def json_of(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def mark(installation: Installation, session: str, **body: str) -> httpx.Response:
    return installation.client.post(
        f"/api/v1/sessions/{session}/fixes", json={"action": "replace_worker", **body}
    )


def fixes(installation: Installation) -> dict[str, Any]:
    found: dict[str, Any] = installation.client.get("/api/v1/fixes?job=llm").json()
    return found


def test_the_next_session_measures_what_an_applied_fix_brought(
    installation: Installation,
) -> None:
    slow = send(installation, body())
    (predicted,) = (
        fix["predicted_gain"]
        for fix in installation.client.get(f"/api/v1/sessions/{slow}/report").json()[
            "recommendations"
        ]
        if fix["action"] == "replace_worker"
    )
    assert mark(installation, slow, by="ada").status_code == 204
    (waiting,) = fixes(installation)["fixes"]
    assert (waiting["applied_by"], waiting["measured_by"]) == ("ada", None)
    healthy = send(installation, body(1.0, seed=2))
    found = fixes(installation)
    (fix,) = found["fixes"]
    assert (fix["measured_by"], fix["measured_number"], fix["unlike"]) == (healthy, 2, None)
    assert fix["predicted_gain"] == pytest.approx(predicted)
    assert fix["realized_gain"] == pytest.approx(predicted, abs=0.02)
    assert found["calibration"] == {
        "measured": 1,
        "met": 1,
        "median_error": pytest.approx(abs(fix["error"])),
    }
    assert set(found["by_action"]) == {"replace_worker"}


def test_the_first_session_after_it_measures_it_however_often_others_are_analyzed(
    installation: Installation,
) -> None:
    slow = send(installation, body())
    mark(installation, slow)
    first = send(installation, body(1.0, seed=2))
    send(installation, body(1.2, seed=3))
    assert [fix["measured_by"] for fix in fixes(installation)["fixes"]] == [first]


def test_an_earlier_session_takes_the_measurement_over_from_a_later_one(
    installation: Installation,
) -> None:
    container = installation.container.within(1)
    keeper = LeaseKeeper(installation.container)
    slow = store(container, small_trace())
    assert execute(installation.container, keeper, slow.run)
    assert mark(installation, str(slow.session)).status_code == 204
    first, second = (store(container, small_trace()) for _ in range(2))
    measured: list[uuid.UUID] = []
    for stored in (second, first):
        assert execute(installation.container, keeper, stored.run)
        (fix,) = fixes(installation)["fixes"]
        measured.append(fix["measured_by"])
    assert measured == [str(second.session), str(first.session)]
    assert session_row(container, first).received_at < session_row(container, second).received_at


def test_metadata_show_that_a_worker_was_replaced(installation: Installation) -> None:
    hosts = {rank: f"node-{rank}" for rank in range(4)}
    slow = send(installation, body(), hosts)
    report = installation.client.get(f"/api/v1/sessions/{slow}/report").json()
    rank = report["workers"]["rank"][1][1]
    healthy = send(installation, body(1.0, seed=2), {**hosts, rank: "node-9"})
    (fix,) = fixes(installation)["fixes"]
    assert (fix["source"], fix["applied_by"], fix["measured_by"]) == ("metadata", None, healthy)


def test_another_workers_host_shows_nothing(installation: Installation) -> None:
    hosts = {rank: f"node-{rank}" for rank in range(4)}
    slow = send(installation, body(), hosts)
    report = installation.client.get(f"/api/v1/sessions/{slow}/report").json()
    rank = report["workers"]["rank"][0][0]
    send(installation, body(1.0, seed=2), {**hosts, rank: "node-9"})
    assert fixes(installation)["fixes"] == []


def test_a_session_with_other_work_per_step_is_named_and_not_counted(
    installation: Installation,
) -> None:
    slow = send(installation, body(), global_batch_size=64)
    mark(installation, slow)
    send(installation, body(1.0, seed=2), global_batch_size=32)
    found = fixes(installation)
    assert found["fixes"][0]["unlike"] == "global_batch_size was 64, and is 32"
    assert found["fixes"][0]["error"] is None
    assert found["calibration"] is None


def test_a_mark_is_written_once_audited_and_taken_back(installation: Installation) -> None:
    slow = send(installation, body())
    for _ in range(2):
        assert mark(installation, slow).status_code == 204
    told = installation.client.get("/api/v1/audit").json()["entries"]
    assert [entry["action"] for entry in told if "llm" in entry["subject"]] == ["marked as applied"]
    address = f"/api/v1/sessions/{slow}/fixes/replace_worker"
    assert installation.client.delete(address).status_code == 204
    assert fixes(installation)["fixes"] == []
    answer = installation.client.delete(address)
    assert (answer.status_code, answer.json()["code"]) == (404, "fix.not_applied")


def test_a_fix_that_was_not_recommended_cannot_be_applied(installation: Installation) -> None:
    slow = send(installation, body())
    answer = mark(installation, slow, title="Buy more GPUs")
    assert (answer.status_code, answer.json()["code"]) == (404, "fix.unknown")


def test_the_fleet_shows_what_fixes_brought_and_how_predictions_turn_out(
    installation: Installation,
) -> None:
    client = installation.client
    assert parse(client.get("/").text).all("section", id="applied") == []
    slow = send(installation, body())
    assert mark(installation, slow, by="ada").status_code == 204
    waiting = parse(client.get("/").text).one("section", id="applied")
    assert waiting.one("h2").text == "No applied fix has been measured yet"
    send(installation, body(1.0, seed=2))
    shown = parse(client.get("/").text).one("section", id="applied")
    assert shown.one("h2").text.startswith("Of 1 measured prediction, 1 held within 5")
    assert [link.text for link in shown.one("td", "grow").all("a")] == ["llm"]
    assert f"/sessions/{slow}" in [link.attributes["href"] for link in shown.all("a")]


def test_an_incident_shows_what_was_applied_while_it_was_open(
    installation: Installation,
) -> None:
    client, alerting = installation.client, Alerting(installation.container.within(1))
    slow = send(installation, body())
    alerting.slow()
    named = next(one for one in alerting.incidents() if one.where == "node-7")
    page = f"/incidents/{named.id}"
    assert parse(client.get(page).text).all("section", aria_label="Applied fixes") == []
    mark(installation, slow, by="ada")
    shown = parse(client.get(page).text).one("section", aria_label="Applied fixes")
    assert "by ada" in shown.text
    assert "the next session measures it" in shown.text
    send(installation, body(1.0, seed=2))
    shown = parse(client.get(page).text).one("section", aria_label="Applied fixes")
    assert "as predicted" in shown.text
    assert "Of 1 measured prediction" in shown.text
