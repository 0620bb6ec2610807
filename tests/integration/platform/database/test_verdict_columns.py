"""The columns of a verdict, which lists and sums read, agree with its document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text

from app.analysis.budget.split import WORTH_SAYING, Part, Shares
from app.analysis.report.session_verdict import KnownLoss, SessionVerdict, verdict_of
from app.sessions.models.tables import StoredVerdict
from benchmarks.support.stored import made_verdict
from tests.integration.pages.test_job_page import sessions
from tests.support import reports

if TYPE_CHECKING:
    from app.platform.container import Container

COLUMNS = (
    *("waste", "lost", "lost_to_stragglers", "lost_between", "lost_together"),
    *("lost_by_cause", "shares"),
)


def shares(**lost: float) -> Shares:
    parts = {**dict.fromkeys((part.value for part in Part), 0.0), **lost}
    return Shares(**{**parts, "computing": 1 - sum(lost.values())})


VERDICTS = {
    "analyzed": verdict_of(reports.slow_worker(), {}),
    "not trusted": verdict_of(reports.distrusted(), {}),
    "nothing known": made_verdict(None),
    "before the budget": made_verdict(1.25),
    "withheld": made_verdict(
        None, withheld=KnownLoss(0.3, 5.0), lost_by_cause={"checkpoint": 0.25, "network": 0.05}
    ),
    "between steps": made_verdict(
        1.02, shares=shares(waiting=0.02, own_slowness=0.01, between_steps_above=0.28)
    ),
    "between steps, usual too": made_verdict(
        None, shares=shares(between_steps=0.3, between_steps_above=0.01), lost_between=0.31
    ),
    "together": made_verdict(
        1.1, shares=shares(slow_together=0.4, communication_above=0.03, launch_delays=0.02)
    ),
    "too little to say": made_verdict(
        None, shares=shares(slow_together=WORTH_SAYING - 0.01, between_steps_above=0.04)
    ),
}


def columns_of(verdict: SessionVerdict) -> dict[str, Any]:
    """Return the values that a verdict's columns should have."""
    losses, known = verdict.losses, verdict.known
    return {
        "waste": None if known is None else pytest.approx(known.waste),
        "lost": None if verdict.lost is None else pytest.approx(verdict.lost),
        "lost_to_stragglers": None if losses is None else pytest.approx(losses.stragglers),
        "lost_between": None if losses is None else pytest.approx(losses.between),
        "lost_together": None if losses is None else pytest.approx(losses.together),
        "lost_by_cause": dict(verdict.lost_by_cause),
        "shares": verdict.shares,
    }


def stored(container: Container) -> dict[str, dict[str, Any]]:
    """Return the columns of each verdict."""
    with container.reading() as tx:
        rows = tx.session.execute(select(StoredVerdict).order_by(StoredVerdict.session_id))
        return {
            row.document.sentence: {name: getattr(row, name) for name in COLUMNS}
            for row in rows.scalars()
        }


def test_the_database_writes_the_columns_with_the_document(container: Container) -> None:
    ids = sessions(container, ["no_verdict"] * len(VERDICTS))
    with container.uow() as tx:
        tx.session.add_all(
            StoredVerdict(session_id=session, document=replace(verdict, sentence=name))
            for session, (name, verdict) in zip(ids, VERDICTS.items(), strict=True)
        )
    assert stored(container) == {name: columns_of(verdict) for name, verdict in VERDICTS.items()}
    with container.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE session_verdict SET document = jsonb_set(document, '{headline,slowdown}',"
                " '2') WHERE document->>'sentence' = 'before the budget'"
            )
        )
    changed = stored(container)["before the budget"]
    assert (changed["waste"], changed["lost"]) == (0.5, 0.5)
