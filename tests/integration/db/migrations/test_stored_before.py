"""What was stored before a migration is there after it, and reads as what came since."""

from __future__ import annotations

import json
import threading
import uuid
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from app.db import migrate
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from sqlalchemy import Engine


def test_merged_sessions_outlive_a_schema_without_chunks(engine: Engine) -> None:
    migrate.upgrade(engine.url)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (name, project_id) VALUES ('llm', 1)"))
        for number, blob in ((1, uuid.uuid4()), (2, None)):
            connection.execute(
                text(
                    """
                    INSERT INTO session (project_id, id, job_id, attempt, number, state, meta,
                        dp, pp, tp, cp, vpp, world, trace_format, body_bytes, operations, steps,
                        trace_blob)
                    VALUES (1, :id, 1, 1, :number, 'open', '{}', 1, 1, 1, 1, 1, 1, 'ndjson',
                        0, 0, 0, :blob)
                    """
                ),
                {"id": uuid.uuid4(), "number": number, "blob": blob},
            )
    migrate.downgrade(engine.url, "0003")
    migrate.upgrade(engine.url)
    with engine.connect() as connection:
        left = connection.execute(text("SELECT number, content_sha256 FROM session")).all()
    assert [row.number for row in left] == [1]
    assert len(left[0].content_sha256) == 32


def _analyzed(number: int, slowdown: float | None, *causes: str) -> dict[str, Any]:
    """Return the values of a session as version 0.1.0 left it."""
    return {
        "id": uuid.uuid4(),
        "number": number,
        "state": "no_verdict" if slowdown is None else "analyzed",
        "slowdown": slowdown,
        "headline": json.dumps({"causes": [{"cause": cause} for cause in causes]}),
    }


SESSION_0006 = text(
    """
    INSERT INTO session (id, job_id, attempt, number, state, meta, dp, pp, tp, cp, vpp, world,
        trace_format, body_bytes, operations, steps, slowdown, slowdown_low, slowdown_high,
        gpu_hours_lost, headline)
    VALUES (:id, 1, 1, :number, :state, '{}', 1, 1, 1, 1, 1, 1, 'ndjson', 0, 0, 0,
        CAST(:slowdown AS float8), CAST(:slowdown AS float8) - 0.125,
        CAST(:slowdown AS float8) + 0.125, 7, CAST(:headline AS jsonb))
    """
)


def test_sessions_get_the_headline_that_their_rows_tell(engine: Engine) -> None:
    migrate.upgrade(engine.url, "0006")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (name) VALUES ('llm')"))
        for values in (
            _analyzed(1, 1.25),
            _analyzed(2, 1.5, "unknown"),
            _analyzed(3, 1.5, "slow_worker", "unknown"),
            _analyzed(4, 1.5, "slow_worker"),
            _analyzed(5, None, "data_loading"),
        ):
            connection.execute(SESSION_0006, values)
    for _ in range(2):
        migrate.upgrade(engine.url)
        with engine.connect() as connection:
            rows = connection.execute(
                text(
                    "SELECT headline_slowdown, headline_low, headline_high, headline_kind,"
                    " headline_gpu_hours_lost FROM session ORDER BY number"
                )
            ).all()
        known = [
            (1.25, 1.125, 1.375, "published", 7.0),
            (1.5, 1.375, 1.625, "published", 7.0),
            (1.5, 1.375, 1.625, "published", 7.0),
        ]
        # Only another analysis says what the named causes cost.
        assert [tuple(row) for row in rows] == [*known, (None,) * 5, (None,) * 5]
        migrate.downgrade(engine.url, "0006")


def test_what_is_stored_counts_when_quotas_come(engine: Engine) -> None:
    migrate.upgrade(engine.url, "0009")
    session = uuid.uuid4()
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (name) VALUES ('llm')"))
        connection.execute(
            text(
                """
                INSERT INTO session (id, job_id, attempt, number, state, meta, dp, pp, tp, cp, vpp,
                    world, trace_format, body_bytes, operations, steps)
                VALUES (:id, 1, 1, 1, 'open', '{}', 1, 1, 1, 1, 1, 1, 'ndjson', 100, 7, 1)
                """
            ),
            {"id": session},
        )
        connection.execute(
            text(
                """
                INSERT INTO intake (session_id, chunks, last_chunk_at, longest_gap_s,
                    refused_chunks, refused_bytes)
                VALUES (:id, 3, now(), 0, 0, 0)
                """
            ),
            {"id": session},
        )
        for producer, number in (("a", 0), ("a", 1), ("b", 0)):
            connection.execute(
                text(
                    """
                    INSERT INTO chunk (session_id, producer, number, sha256, final, body_bytes,
                        operations, cells)
                    VALUES (:id, :producer, :number, 'x', false, 1, 1, '{0}')
                    """
                ),
                {"id": session, "producer": producer, "number": number},
            )
    for _ in range(2):
        migrate.upgrade(engine.url)
        with engine.connect() as connection:
            used = connection.execute(text("SELECT bytes, operations FROM project_usage")).one()
            producers = connection.execute(text("SELECT producers FROM intake")).scalar_one()
        assert (tuple(used), producers) == ((100, 7), 2)
        migrate.downgrade(engine.url, "0009")


MANY_0020: Final = """
    INSERT INTO session (project_id, id, job_id, attempt, number, state, meta, dp, pp, tp, cp, vpp,
        world, trace_format, body_bytes, operations, steps)
    SELECT 1, CAST(lpad(to_hex(n), 32, '0') AS uuid), (SELECT min(id) FROM job), 1, n, 'open',
        jsonb_build_object('labels', CASE WHEN n % 2 = 1 THEN jsonb_build_object('owner', 'ada')
            ELSE '{}' END), 1, 1, 1, 1, 1, 1, 'ndjson', 0, 0, 0
    FROM generate_series(CAST(:first AS integer), :last) AS n
"""


def test_labels_of_before_are_filled_in_batches(engine: Engine) -> None:
    """Killed in its middle or held up there, it keeps what it has, and goes on."""
    migrate.upgrade(engine.url, "0020")
    filled = text("SELECT count(*) FROM session WHERE labels->>'owner' = 'ada'")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (name, project_id) VALUES ('llm', 1)"))
        connection.execute(text(MANY_0020), {"first": 1, "last": 2400})
    migrate.upgrade(engine.url, "0023")
    upgrade = threading.Thread(target=migrate.upgrade, args=(engine.url,))
    watching = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as writer, watching.connect() as watcher:
        # Of the last of three batches.
        writer.execute(text("SELECT 1 FROM session WHERE number = 2399 FOR UPDATE"))
        upgrade.start()
        wait_for(lambda: watcher.execute(filled).scalar_one() == 1000, "two batches")
        assert migrate.current_revision(engine) == "0023"
        writer.rollback()
    upgrade.join()
    assert migrate.current_revision(engine) == migrate.expected_revision()
    with engine.connect() as connection:
        assert connection.execute(filled).scalar_one() == 1200


def test_labels_of_what_the_version_before_writes_are_kept_beside_it(engine: Engine) -> None:
    migrate.upgrade(engine.url)
    labels = text("SELECT labels->>'owner' FROM session WHERE number = 1")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (name, project_id) VALUES ('llm', 1)"))
        connection.execute(text(MANY_0020), {"first": 1, "last": 1})
        assert connection.execute(labels).scalar_one() == "ada"
        for changed, owner in (
            ("""meta = '{"labels": {"owner": "eve"}}'""", "eve"),
            ("state = 'queued'", "eve"),
            # This version says both.
            ("""meta = '{"labels": {"owner": "bob"}}', labels = '{"owner": "joe"}'""", "joe"),
        ):
            connection.execute(text(f"UPDATE session SET {changed}"))  # noqa: S608 - ours
            assert connection.execute(labels).scalar_one() == owner


READINGS_0024: Final = """
    INSERT INTO job (name, project_id) SELECT 'job-' || n, 1 FROM generate_series(1, 25) AS n;
    INSERT INTO session (project_id, id, job_id, attempt, number, state, received_at, meta, dp, pp,
        tp, cp, vpp, world, trace_format, body_bytes, operations, steps)
    SELECT 1, gen_random_uuid(), job.id, 1, n, 'analyzed', timestamptz '2026-11-02 01:00:00+00'
        + n * interval '3 days', '{}', 1, 1, 1, 1, 1, 1, 'ndjson', 0, 0, 0
    FROM job, generate_series(0, 3) AS n;
    INSERT INTO report (project_id, session_id, in_ledger, document_blob)
    SELECT 1, id, true, gen_random_uuid() FROM session;
    INSERT INTO host_reading (project_id, session_id, host, job_id, received_at, ranks, workers,
        slowdown, computing, cause, lost_each_hour, measured_s, gpus)
    SELECT 1, id, host, job_id, received_at, 8, 1, 1 + number / 10.0, 1, CASE number
        WHEN 1 THEN 'memory_fragmentation' WHEN 2 THEN 'slow_worker' END, 1, 60, '[]'
    FROM session, unnest(ARRAY['node-1', 'node-2']) AS host;
"""


def test_readings_of_before_are_added_up_in_batches(engine: Engine) -> None:
    """Held up in the middle, it keeps what it has; what comes meanwhile is counted once."""
    migrate.upgrade(engine.url, "0024")
    with engine.begin() as connection:
        for statement in READINGS_0024.split(";\n")[:-1]:
            connection.execute(text(statement))
    migrate.upgrade(engine.url, "0025")
    jobs = text("SELECT count(DISTINCT job_id) FROM host_week")
    upgrade = threading.Thread(target=migrate.upgrade, args=(engine.url,))
    watching = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as writer, watching.connect() as watcher:
        # A session of the last job comes again.
        writer.execute(
            text(
                "CREATE TEMP TABLE again AS SELECT * FROM host_reading WHERE session_id ="
                " (SELECT id FROM session WHERE number = 0 ORDER BY job_id DESC LIMIT 1)"
            )
        )
        writer.execute(
            text("DELETE FROM host_reading WHERE session_id IN (SELECT session_id FROM again)")
        )
        writer.execute(text("INSERT INTO host_reading SELECT * FROM again"))
        upgrade.start()
        wait_for(lambda: watcher.execute(jobs).scalar_one() == 20, "two batches")
        assert migrate.current_revision(engine) == "0025"
        writer.commit()
    upgrade.join()
    assert migrate.current_revision(engine) == migrate.expected_revision()
    with engine.connect() as connection:
        weeks = connection.execute(
            text(
                "SELECT CAST(week AT TIME ZONE 'UTC' AS date), sum(sessions), max(slowdown),"
                " count(*) FROM host_week GROUP BY week ORDER BY week"
            )
        ).all()
        # Two hosts in each of 25 jobs.
        assert [(f"{day}", *rest) for day, *rest in weeks] == [
            ("2026-11-02", 150, 1.2, 50),
            ("2026-11-09", 50, 1.3, 50),
        ]
        again = "SELECT DISTINCT number FROM session JOIN report ON session_id = id"
        anew = connection.execute(text(f"{again} WHERE NOT in_ledger")).scalars().all()
        assert anew == [1]
