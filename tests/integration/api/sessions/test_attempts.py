"""Announced starts of a job: their numbers are the same for all senders and repetitions."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

import pytest

from tests.integration.api import bodies
from tests.integration.api.chunks import rank_body

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Installation


def announce(
    installation: Installation, run_id: str = "slurm-812", restart: int = 0, job: str = "job"
) -> httpx.Response:
    return installation.client.post(
        f"/api/v1/jobs/{job}/attempts", json={"run_id": run_id, "restart": restart}
    )


def test_starts_are_numbered_in_their_order_and_the_same_one_once(
    installation: Installation,
) -> None:
    first = announce(installation)
    assert first.status_code == 201
    assert first.json() == {"job": "job", "attempt": 1, "run_id": "slurm-812", "restart": 0}
    assert announce(installation, restart=1).json()["attempt"] == 2
    assert announce(installation, "slurm-813").json()["attempt"] == 3
    again = announce(installation)
    assert (again.status_code, again.json()["attempt"]) == (200, 1)
    assert announce(installation, job="other").json()["attempt"] == 1


def test_every_rank_may_ask_at_once(installation: Installation) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as ranks:
        answers = list(ranks.map(lambda _: announce(installation), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert {answer.json()["attempt"] for answer in answers} == {1}


def test_a_new_start_comes_after_the_attempts_that_sessions_named(
    installation: Installation,
) -> None:
    chunk = installation.client.put(
        "/api/v1/jobs/job/attempts/4/sessions/1/chunks/rank-0/0",
        content=rank_body(0),
        params=bodies.SIZES,
    )
    assert chunk.status_code == 202
    assert announce(installation).json()["attempt"] == 5


@pytest.mark.parametrize(
    ("job", "body"),
    [
        ("job", {"run_id": ""}),
        ("job", {"run_id": "a\nb"}),
        ("job", {"run_id": "a" * 201}),
        ("job", {"run_id": "a", "restart": -1}),
        ("job", {"run_id": "a", "restarts": 1}),
        ("%20", {"run_id": "a"}),
    ],
)
def test_an_impossible_run_is_refused(
    installation: Installation, job: str, body: dict[str, object]
) -> None:
    answer = installation.client.post(f"/api/v1/jobs/{job}/attempts", json=body)
    assert answer.status_code == 422
    assert installation.rows()["job"] == 0
