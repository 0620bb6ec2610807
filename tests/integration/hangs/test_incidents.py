"""A hang makes an incident, which ends with the hang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import update

from app.incidents.models.tables import AlertGroup
from app.incidents.sweep import sweep_alerts
from tests.support.hanging import Hanging, archived, pickled
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container

WORLD = [(0, 1, 2, 3)]


def send(client: httpx.Client) -> dict[str, Any]:
    began_ns = time.time_ns() - 60 * 10**9
    hanging = Hanging(4, [WORLD, WORLD], host_stops={2: 1}, begin_ns=began_ns)
    dumps = {f"_dump_{rank}": pickled(dump) for rank, dump in hanging.dumps().items()}
    answer = client.post("/api/v1/jobs/moe/hangs", content=archived(dumps))
    assert answer.status_code == 201, answer.text
    receipt: dict[str, Any] = answer.json()
    return receipt


def incidents(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/v1/incidents").json()["incidents"]
    return found


def look(container: Container) -> None:
    with container.everywhere().uow() as tx:
        tx.session.execute(update(AlertGroup).values(look_at=tx.now))
    sweep_alerts(container)


def test_it_fires_with_the_hang_and_ends_with_the_next_session(
    client: httpx.Client, container: Container
) -> None:
    hang = send(client)["hang"]
    (incident,) = incidents(client)
    assert (incident["cause"], incident["state"]) == ("hang", "firing")
    assert incident["hang"]["culprits"] == "2"
    page = client.get(f"/incidents/{incident['id']}").text
    assert f'href="/hangs/{hang}"' in page
    assert "3 ranks wait for rank 2" in page
    assert "Acknowledge" in client.get(f"/hangs/{hang}").text
    evidence = client.get(f"/incidents/{incident['id']}/evidence").text
    assert "3 of 4 ranks" in evidence

    store(container, small_trace(), job="moe")
    look(container)
    one = client.get(f"/api/v1/incidents/{incident['id']}").json()
    assert one["state"] == "resolved"
    assert "GPU-" in one["why_resolved"]
    (listed,) = client.get("/api/v1/jobs/moe/hangs").json()["hangs"]
    assert (listed["over_at"] is not None, listed["over_by"]) == (True, None)


def test_a_person_ends_it_with_its_incident(client: httpx.Client, container: Container) -> None:
    send(client)
    (incident,) = incidents(client)
    answer = client.post(f"/api/v1/incidents/{incident['id']}/resolve", json={"by": "ann"})
    assert answer.status_code == 200, answer.text
    (listed,) = client.get("/api/v1/jobs/moe/hangs").json()["hangs"]
    assert listed["over_by"] == "ann"
    look(container)
    assert [one["state"] for one in incidents(client)] == ["resolved"]


def test_a_project_has_its_rule_from_the_first_hang_on_until_a_person_deletes_it(
    client: httpx.Client,
) -> None:
    def rules() -> dict[str, str]:
        listed = client.get("/api/v1/alert-rules").json()["rules"]
        return {rule["name"]: rule["id"] for rule in listed}

    assert "Hang" not in rules()
    send(client)
    assert client.delete(f"/api/v1/alert-rules/{rules()['Hang']}").is_success
    send(client)
    assert "Hang" not in rules()
