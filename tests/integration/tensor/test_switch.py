"""The right to switch a job's plans, and its entry in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.access.audit import list_entries
from app.platform.identity import ActorKind, Right
from tests.integration.access.conftest import Company, serving
from tests.support.tensor import HEALTHY, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.settings import Settings


@pytest.fixture
def company(settings: Settings) -> Iterator[Company]:
    """Yield a server that requires sign-in."""
    with serving(settings) as found:
        yield found


def test_reporting_takes_ingest_and_switching_takes_operate(company: Company) -> None:
    with company.client(company.token(Right.INGEST)) as client:
        job = TrainingJob(client)
        job.report(*HEALTHY)
        refused = job.switch("apply")
        assert (refused.status_code, refused.json()["code"]) == (403, "access.forbidden")
    with company.client(company.token(Right.READ)) as client:
        job = TrainingJob(client)
        assert job.switch("apply").status_code == 403
        assert job.send(*HEALTHY).status_code == 403
        assert client.get("/api/v1/jobs/llm/tp/mode").json()["mode"] == "advise"
        spec = {"times_s": [2, 1], "matmul_s": [2, 1], "columns": 8}
        assert client.post("/api/v1/mitigation/plan", json=spec).status_code == 200
    with company.client(company.token(Right.OPERATE, name="bot")) as client:
        job = TrainingJob(client)
        assert job.switch("apply", max_gamma=0.1).json()["mode"] == "apply"
        assert job.send(*HEALTHY).status_code == 403


def test_the_audit_log_names_the_account_that_switched(
    company: Company,
) -> None:
    with company.client(company.token(Right.INGEST)) as client:
        TrainingJob(client).report(*HEALTHY)
    with company.client(company.token(Right.OPERATE, name="bot")) as client:
        job = TrainingJob(client)
        found = job.switch("apply", max_gamma=0.1, by="ann").json()
        job.switch("advise", expires_after_steps=50)
    assert [item["by"] for item in found["history"]] == ["bot"]
    with company.container.everywhere().reading() as tx:
        entries = [
            (entry.actor, entry.action, entry.subject, entry.project, entry.detail)
            for entry in list_entries(tx, 100)
            if entry.actor_kind is ActorKind.TOKEN
        ]
    assert entries == [
        ("bot", "switched", "tensor plans of llm", "default", "to advise, for 50 steps"),
        (
            "bot", "switched", "tensor plans of llm", "default",
            "to apply, γ at most 0.1, for 200 steps",
        ),
    ]  # fmt: skip
