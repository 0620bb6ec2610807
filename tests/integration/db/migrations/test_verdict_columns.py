"""What lists and sums read of verdicts stands in columns, whichever version wrote the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text

from app.analysis.budget.split import WORTH_SAYING, Part, Shares
from app.analysis.report.session_verdict import KnownLoss, SessionVerdict, verdict_of
from app.platform.database import migrate
from app.sessions.models.tables import StoredVerdict
from benchmarks.support.verdicts import made_verdict
from tests.integration.dashboard.test_job_page import sessions
from tests.support import reports

if TYPE_CHECKING:
    from app.platform.container import Container

NUMBERS = ("waste", "lost", "lost_to_stragglers", "lost_between", "lost_together")
EMPTY = dict.fromkeys((*NUMBERS, "lost_by_cause", "shares"))
# As columns are that revision 0014 has added, of rows that were there.
EMPTIED = """
UPDATE session_verdict SET waste = NULL, lost = NULL, lost_to_stragglers = NULL,
    lost_between = NULL, lost_together = NULL, lost_by_cause = NULL, shares = NULL
"""


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
    """Return what the columns of a verdict say."""
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
            row.document.sentence: {name: getattr(row, name) for name in EMPTY}
            for row in rows.scalars()
        }


def store(container: Container) -> dict[str, dict[str, Any]]:
    """Store every verdict by its document alone, as each version does; return its columns."""
    found = sessions(container, ["no_verdict"] * len(VERDICTS))
    with container.uow() as tx:
        tx.session.add_all(
            StoredVerdict(session_id=session, document=replace(verdict, sentence=name))
            for session, (name, verdict) in zip(found, VERDICTS.items(), strict=True)
        )
    return {name: columns_of(verdict) for name, verdict in VERDICTS.items()}


def test_the_database_writes_the_columns_with_the_document(container: Container) -> None:
    expected = store(container)
    assert stored(container) == expected
    with container.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE session_verdict SET document = jsonb_set(document, '{headline,slowdown}',"
                " '2') WHERE document->>'sentence' = 'before the budget'"
            )
        )
    changed = stored(container)["before the budget"]
    assert (changed["waste"], changed["lost"]) == (0.5, 0.5)


def test_verdicts_of_before_are_filled_and_nothing_else_changes(container: Container) -> None:
    expected = store(container)
    of_before = text("SELECT to_jsonb(s) FROM session AS s ORDER BY id")
    with container.engine.begin() as connection:
        was = connection.execute(of_before).scalars().all()
        connection.execute(text("ALTER TABLE session_verdict DISABLE TRIGGER USER"))
        connection.execute(text(EMPTIED))
        connection.execute(text("ALTER TABLE session_verdict ENABLE TRIGGER USER"))
        connection.execute(text("UPDATE session SET discrepancy = 0.5"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0014'"))
    assert set(map(str, stored(container).values())) == {str(EMPTY)}
    migrate.upgrade(container.engine.url, "0015")
    assert stored(container) == expected
    with container.engine.connect() as connection:
        found = connection.execute(of_before).scalars().all()
    assert [one["discrepancy"] for one in found] == [0.5] * len(was)
