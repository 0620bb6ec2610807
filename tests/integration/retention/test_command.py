"""`paceline retention`: rules are read and changed over HTTP, and applied on the database."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, update

from app.platform.identity import Right
from app.retention.models import DoomedBlob, Keep
from app.retention.rules import rules_of
from app.sessions.models.tables import Session
from tests.integration.access.conftest import company
from tests.support.command import paceline
from tests.support.reads import read
from tests.support.sessions import session_row, small_trace, store

if TYPE_CHECKING:
    from tests.integration.access.conftest import Company
    from tests.support.sessions import Stored

__all__ = ["company"]


def _analyzed(company: Company, days: float) -> Stored:
    """Store a session that was received a number of days ago, marked as analyzed."""
    stored = store(company.ours, small_trace())
    with company.ours.uow() as tx:
        tx.session.execute(
            update(Session)
            .where(Session.id == stored.session)
            .values(state="analyzed", received_at=tx.now - timedelta(days=days))
        )
    return stored


@pytest.fixture(autouse=True)
def server(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SERVER", company.url)
    monkeypatch.setenv("PACELINE_TOKEN", company.token(Right.READ, Right.OPERATE))
    monkeypatch.setenv("PACELINE_DATABASE_URL", str(company.container.settings.database_url))


def _row(table: str, kind: str) -> list[str]:
    (found,) = [line.split() for line in table.splitlines() if line.startswith(f"{kind} ")]
    return found


def test_retention_rules_are_shown_and_changed(company: Company) -> None:
    _analyzed(company, 9)
    shown = paceline("retention", "show")
    assert shown.returncode == 0, shown.stderr
    kind, there, size, oldest, days, most = _row(shown.stdout, "traces")
    assert (kind, there, days, most) == ("traces", "1", "all", "all")
    assert int(size.replace(",", "")) > 0
    with company.ours.reading() as tx:
        assert oldest == f"{tx.now - timedelta(days=9):%Y-%m-%d}"
    assert _row(shown.stdout, "audit")[-2:] == ["730", "all"]

    done = paceline("retention", "set", "traces", "--days", "30", "--bytes", "5000000")
    assert (done.returncode, _row(done.stdout, "traces")[-2:]) == (0, ["30", "5,000,000"])
    # A rule that the command does not name stays.
    assert paceline("retention", "set", "traces", "--days", "all").returncode == 0
    rules = read(company.ours, rules_of)
    assert (rules.traces, rules.task_runs) == (Keep(bytes=5_000_000), Keep(days=90))


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        (("traces",), 2, "--days, --bytes or both"),
        (("pulses", "--days", "9"), 2, "the kinds are traces, heatmaps, reports"),
        (("traces", "--days", "soon"), 2, "a number, or all"),
        (("audit", "--days", "30"), 1, "audit.days"),
    ],
)
def test_an_impossible_rule_is_refused_and_changes_nothing(
    company: Company, wrong: tuple[str, ...], status: int, words: str
) -> None:
    before = read(company.ours, rules_of)
    refused = paceline("retention", "set", *wrong)
    # The box of an error may break a sentence anywhere.
    said = " ".join(refused.stderr.replace("│", " ").split())
    assert (refused.returncode, refused.stdout) == (status, "")
    assert words in said
    assert read(company.ours, rules_of) == before


def test_who_may_only_read_changes_nothing(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", company.token(Right.READ))
    assert paceline("retention", "show").returncode == 0
    refused = paceline("retention", "set", "traces", "--days", "1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert read(company.ours, rules_of).traces == Keep()


def test_a_run_deletes_rows_beyond_the_rules_with_their_bytes(company: Company) -> None:
    old, young = _analyzed(company, 9), _analyzed(company, 3)
    assert paceline("retention", "set", "traces", "--days", "5").returncode == 0
    done = paceline("retention", "run")
    assert (done.returncode, done.stdout) == (0, "removed: 1\n")
    assert session_row(company.ours, old).trace_blob is None
    assert session_row(company.ours, young).trace_blob is not None
    with company.container.everywhere().reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(DoomedBlob)).scalar_one() == 0
    # The second run looks at the project again, and finds nothing to delete.
    assert paceline("retention", "run").stdout == "removed: 0\n"
    assert paceline("retention", "set", "traces", "--days", "1").returncode == 0
    assert paceline("retention", "run").stdout == "removed: 1\n"
