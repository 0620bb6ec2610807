"""Routes and commands of retention, with a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from app.platform.database.task_runs import TaskRun
from app.platform.identity import Right
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from tests.integration.access.conftest import company
from tests.support.command import paceline
from tests.support.sessions import session_row, small_trace, store

if TYPE_CHECKING:
    import pytest

    from tests.integration.access.conftest import Company
    from tests.support.sessions import Stored

__all__ = ["company"]


def _analyzed(company: Company, job: str = "llm") -> Stored:
    stored = store(company.ours, small_trace(), job=job)
    assert execute(company.container, LeaseKeeper(company.container), stored.run)
    return stored


def _work(company: Company) -> None:
    with company.container.reading() as tx:
        waiting = list(
            tx.session.execute(select(TaskRun.id).where(TaskRun.state == "queued")).scalars()
        )
    for run in waiting:
        assert execute(company.container, LeaseKeeper(company.container), run)


def test_an_operator_does_what_a_reader_may_not(company: Company) -> None:
    stored = _analyzed(company)
    address = f"/api/v1/sessions/{stored.session}"
    with company.client(company.token(Right.READ)) as client:
        for method, path in (
            ("POST", f"{address}/analyze"),
            ("PUT", f"{address}/pin"),
            ("DELETE", address),
            ("DELETE", "/api/v1/jobs/llm"),
        ):
            assert client.request(method, path).status_code == 403
    with company.client(company.token(Right.OPERATE)) as client:
        assert client.put(f"{address}/pin").status_code == 204
        assert client.get(address).json()["pinned"] is True
        again = client.post(f"{address}/analyze")
        assert (again.status_code, again.json()["queued"]) == (202, True)
        _work(company)
        renamed = client.patch("/api/v1/jobs/llm", json={"name": "a/b"})
        assert (renamed.status_code, renamed.json()["code"]) == (422, "job.invalid_name")
        assert client.patch("/api/v1/jobs/llm", json={"name": "llm-70b"}).status_code == 204
        assert client.get(address).json()["job"] == "llm-70b"
        assert client.delete(address).status_code == 204
        assert client.get(address).status_code == 404
        assert client.delete(address).status_code == 404


def test_the_commands_do_the_same(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SERVER", company.url)
    monkeypatch.setenv("PACELINE_TOKEN", company.token(Right.OPERATE))
    one, two = _analyzed(company), _analyzed(company)
    done = paceline("session", "analyze", str(one.session))
    assert (done.returncode, done.stdout) == (0, f"{one.session} queued\n")
    _work(company)
    done = paceline("session", "analyze", "--state", "analyzed", "--job", "llm")
    assert (done.returncode, done.stdout) == (0, "sessions queued: 2\n")
    _work(company)
    assert paceline("session", "pin", str(one.session)).returncode == 0
    assert session_row(company.ours, one).pinned
    assert paceline("session", "unpin", str(one.session)).returncode == 0
    assert not session_row(company.ours, one).pinned
    assert paceline("session", "delete", "--yes", str(two.session)).returncode == 0
    assert paceline("job", "archive", "llm").returncode == 0
    assert paceline("job", "rename", "llm", "old").returncode == 0
    assert paceline("job", "delete", "--yes", "old").returncode == 0
    done = paceline("job", "delete", "--yes", "old")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("[not_found]\n")


def test_retention_rules_are_read_and_changed(company: Company) -> None:
    _analyzed(company)
    with company.client(company.token(Right.READ)) as client:
        state = client.get("/api/v1/retention").json()
        assert state["rules"]["traces"] == {"days": None, "bytes": None}
        assert state["rules"]["audit"] == {"days": 730, "bytes": None}
        assert state["uses"]["traces"]["count"] == 1
        assert state["uses"]["traces"]["bytes"] > 0
        assert client.put("/api/v1/retention", json={}).status_code == 403
        assert "Sessions are kept without limit" in client.get("/retention").text
    with company.client(company.token(Right.OPERATE)) as client:
        for wrong, place in (
            ({"traces": {"days": 0}}, "traces.days"),
            ({"audit": {"days": 30}}, "audit.days"),
            ({"pulses": {}}, "pulses"),
        ):
            refused = client.put("/api/v1/retention", json=wrong)
            assert (refused.status_code, refused.json()["faults"][0]["column"]) == (422, place)
        rules = {"traces": {"days": 30, "bytes": 5 * 2**30}}
        changed = client.put("/api/v1/retention", json=rules).json()
        assert changed["rules"]["traces"] == rules["traces"]
        page = client.get("/retention").text
        assert "Old sessions lose operations" in page
        assert 'value="30"' in page
        assert 'value="5"' in page
    with company.client(company.token(Right.READ, project="other")) as client:
        assert client.get("/api/v1/retention").json()["rules"]["traces"]["days"] is None
