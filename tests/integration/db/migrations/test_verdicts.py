"""Verdicts of what the version before analyzed are those that its reports would give."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import text

from app.analysis.json_text import to_json
from app.analysis.report.session_verdict import verdict_of
from app.platform.database import migrate
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.models.tables import VERDICT, Session, StoredVerdict
from tests.support import reports
from tests.support.sessions import small_trace, store, stored_verdict
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from app.analysis.report.session_verdict import SessionVerdict
    from app.platform.container import Container

UPGRADE: Final = "import sys; from app.db import migrate; migrate.upgrade(sys.argv[1])"
COPIES: Final = (
    "CREATE TABLE was_session AS SELECT * FROM session",
    "CREATE TABLE was_figure AS SELECT * FROM session_figure",
    "CREATE TABLE was_facts AS SELECT * FROM alert_facts",
)
# What the version before writes of an analysis, in its order.
BEFORE: Final = (
    """
    UPDATE session SET
        (slowdown, slowdown_low, slowdown_high, waste, gpu_hours_lost, discrepancy, headline,
        headline_slowdown, headline_low, headline_high, headline_gpu_hours_lost, headline_kind)
        = (SELECT slowdown, slowdown_low, slowdown_high, waste, gpu_hours_lost, discrepancy,
            headline, headline_slowdown, headline_low, headline_high, headline_gpu_hours_lost,
            headline_kind FROM was_session)
    """,
    "DELETE FROM session_figure; INSERT INTO session_figure SELECT * FROM was_figure",
    "UPDATE alert_facts SET document = was_facts.document FROM was_facts",
)
MANY: Final = """
    INSERT INTO job (name, project_id) VALUES ('llm', 1);
    INSERT INTO session (project_id, id, job_id, attempt, number, state, meta, dp, pp, tp, cp, vpp,
        world, trace_format, body_bytes, operations, steps, discrepancy, headline)
    SELECT 1, CAST(lpad(to_hex(n), 32, '0') AS uuid), 1, 1, n, 'no_verdict', '{}', 1, 1, 1, 1, 1, 1,
        'ndjson', 0, 0, 0, 0.07, jsonb_build_object('level', 'none', 'sentence', 'none', 'causes',
            CAST('[]' AS jsonb), 'worst', CAST('{"dp": 0, "rank": 0}' AS jsonb))
    FROM generate_series(1, 1200) AS n
"""


def _without_gpus(verdict: SessionVerdict) -> SessionVerdict:
    """Return a verdict as the version before would have it, which knew no GPUs."""
    return replace(verdict, causes=tuple(replace(cause, gpus=()) for cause in verdict.causes))


def _same(found: SessionVerdict, expected: SessionVerdict) -> bool:
    """Return whether two verdicts are alike in all that the version before knew."""
    known = [
        replace(cause, evidence=cause.evidence[:2], cost_s=None, views=(), runner_up=None)
        for cause in expected.causes[2:]
    ]
    trimmed = _without_gpus(replace(expected, causes=(*expected.causes[:2], *known)))
    return bool(to_json(found) == to_json(trimmed))


def test_what_the_version_before_stored_of_an_analysis_gives_its_verdict(
    container: Container,
) -> None:
    """Written by the triggers, by the backfill, and by the triggers the other way round."""
    stored = store(container, small_trace())
    keeper = LeaseKeeper(container)
    assert execute(container, keeper, stored.run)
    keeper.stop()
    made = stored_verdict(container, stored)
    assert made is not None
    made = replace(_without_gpus(made), steps_s=(), computing=None, shares=None, lost_between=None)
    with container.engine.begin() as connection:
        for copy in COPIES:
            connection.execute(text(copy))
        connection.execute(text("DELETE FROM session_verdict"))
        gone = connection.execute(text("SELECT headline FROM session")).scalar()
        assert gone is None
    assert stored_verdict(container, stored) is None
    with container.engine.begin() as connection:
        for statement in BEFORE:
            connection.execute(text(statement))
    assert stored_verdict(container, stored) == made
    with container.engine.begin() as connection:
        connection.execute(text("ALTER TABLE session_verdict DISABLE TRIGGER USER"))
        connection.execute(text("DELETE FROM session_verdict"))
        connection.execute(text("ALTER TABLE session_verdict ENABLE TRIGGER USER"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0003'"))
    migrate.upgrade(container.engine.url, "0004")
    assert stored_verdict(container, stored) == made
    # An analysis of the version before that brings nothing ends it.
    with container.engine.begin() as connection:
        connection.execute(text("UPDATE session SET headline = NULL"))
    assert stored_verdict(container, stored) is None


@pytest.mark.parametrize("scenario", ["slow-worker", "network", "sequence-lengths", "distrusted"])
def test_no_number_of_a_report_is_lost_on_the_way_there_and_back(
    container: Container, scenario: str
) -> None:
    report = reports.distrusted() if scenario == "distrusted" else reports.scenario(scenario)
    made = replace(
        verdict_of(report, {"seq_length": 4096}),
        steps_s=(),
        computing=None,
        shares=None,
        lost_between=None,
    )
    stored = store(container, small_trace())
    with container.uow() as tx:
        session = tx.session.get_one(Session, stored.session)
        session.world, session.dp, session.pp = made.sizes.world, made.sizes.dp, made.sizes.pp
        tx.session.flush()
        tx.session.add(StoredVerdict(session_id=stored.session, document=made))
    with container.engine.connect() as connection:
        document = connection.execute(
            text("SELECT verdict_of_before(session) FROM session")
        ).scalar_one()
    found = VERDICT.process_result_value(document, None)  # type: ignore[arg-type]
    assert found is not None
    if made.headline is None:
        made = replace(
            made,
            worst=made.worst[:1],
            causes=tuple(replace(cause, where=()) for cause in made.causes[:2]),
            fix=None,
            # The version before says nothing of what causes cost without a verdict.
            withheld=None,
            lost_by_cause={},
            measured_s=None,
            measures=replace(made.measures, context=None),
        )
    assert _same(found, made)


@pytest.mark.parametrize("killed", [False, True], ids=["held up", "killed"])
def test_verdicts_are_filled_in_batches(engine: Engine, *, killed: bool) -> None:
    """Held up or killed in the middle, the backfill keeps what it has, and goes on."""
    migrate.upgrade(engine.url, "0001")
    with engine.begin() as connection:
        for statement in MANY.split(";\n"):
            connection.execute(text(statement))
    migrate.upgrade(engine.url, "0003")
    url = engine.url.render_as_string(hide_password=False)
    watching = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as writer, watching.connect() as watcher:
        # Of the last of three batches: it is analyzed at this moment, and discarded.
        writer.execute(text("UPDATE session SET headline = NULL WHERE number = 1199"))
        upgrade = subprocess.Popen([sys.executable, "-c", UPGRADE, url])  # noqa: S603 - ours
        wait_for(lambda: _filled(watcher) == 1000, "two batches")
        assert migrate.current_revision(engine) == "0003"
        if killed:
            upgrade.kill()
            upgrade.wait(LIMIT_S)
        writer.commit()
    if killed:
        migrate.upgrade(engine.url)
    else:
        assert upgrade.wait(LIMIT_S) == 0
    assert migrate.current_revision(engine) == migrate.expected_revision()
    with engine.connect() as connection:
        assert _filled(connection) == 1199


def _filled(connection: Connection) -> int:
    count: int = connection.execute(text("SELECT count(*) FROM session_verdict")).scalar_one()
    return count
