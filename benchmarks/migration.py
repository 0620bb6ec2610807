"""What filling the verdicts of many sessions takes while others are written (0002 to 0004).

Fills a database at the revision before with copies of an analyzed session, lets producers write as
the program of that revision does, migrates, and prints how long that took and how long a write
waited at most: ``python -m benchmarks.migration``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import insert, text

from app.access.models import DEFAULT_PROJECT_ID
from app.analysis.report.build import analyze
from app.analysis.report.session_verdict import verdict_of
from app.analysis.synthesis.scenarios import SCENARIOS
from app.platform.database import migrate
from app.platform.database.engine import make_engine
from app.platform.embedded.server import EmbeddedPostgres
from app.sessions.models.tables import StoredVerdict

if TYPE_CHECKING:
    from sqlalchemy import Engine

BEFORE: Final = "0001"
PRODUCERS: Final = 2
FIRST_ID: Final = uuid.UUID(int=1)
FIRST: Final = """
    INSERT INTO session (project_id, id, job_id, attempt, number, state, meta, dp, pp, tp, cp, vpp,
        world, trace_format, body_bytes, operations, steps)
    SELECT 1, :id, job.id, 1, 1, 'analyzed', '{}', :dp, :pp, :tp, :cp, :vpp, :world, 'parquet', 1,
        1, 20
    FROM job
"""
# What analyses of the revision before leave, copied under other ids.
COPY: Final = """
    WITH made AS (
        INSERT INTO session SELECT (jsonb_populate_record(was, jsonb_build_object(
            'id', gen_random_uuid(), 'received_at', clock_timestamp(),
            'number', (SELECT max(number) FROM session) + n))).*
        FROM session AS was, generate_series(1, :many) AS n
        WHERE was.number = 1
        RETURNING id, received_at
    ), figures AS (
        INSERT INTO session_figure SELECT (jsonb_populate_record(was, jsonb_build_object(
            'session_id', made.id, 'received_at', made.received_at))).*
        FROM made, session_figure AS was WHERE was.session_id = :first
    )
    INSERT INTO alert_facts SELECT (jsonb_populate_record(was, jsonb_build_object(
        'session_id', made.id, 'received_at', made.received_at))).*
    FROM made, alert_facts AS was WHERE was.session_id = :first
"""


class Producer(threading.Thread):
    """Writes one analyzed session after the other, as the revision before does."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(daemon=True)
        self._engine = engine
        self.stop = threading.Event()
        self.took_s: list[float] = []

    def run(self) -> None:
        """Write until the end."""
        while not self.stop.wait(0.01):
            began_s = time.perf_counter()
            with self._engine.begin() as connection:
                # Numbers of a job are given one after the other.
                connection.execute(text("SELECT FROM job FOR UPDATE"))
                connection.execute(text(COPY), {"many": 1, "first": FIRST_ID})
            self.took_s.append(time.perf_counter() - began_s)


def _fill(url: str, engine: Engine, sessions: int) -> None:
    """Leave a database at the revision before, with copies of one analyzed session."""
    migrate.upgrade(url)
    report = analyze(SCENARIOS["slow-worker"].synthesize(0).trace).report
    verdict = verdict_of(report, {})
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (project_id, name) VALUES (1, 'llm')"))
        connection.execute(text(FIRST), {"id": FIRST_ID, **asdict(report.sizes)})
        # Triggers make the projections of the revision before of it.
        first = {"project_id": DEFAULT_PROJECT_ID, "session_id": FIRST_ID, "document": verdict}
        connection.execute(insert(StoredVerdict), first)
    migrate.downgrade(url, BEFORE)
    with engine.begin() as connection:
        connection.execute(text(COPY), {"many": sessions - 1, "first": FIRST_ID})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))


def main() -> int:
    """Fill, let others write, migrate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-migration-") as name:
        Path(name).chmod(0o755)
        with EmbeddedPostgres(Path(name) / "database") as postgres:
            engine = make_engine(postgres.url, application_name="producers")
            _fill(postgres.url, engine, options.sessions)
            producers = [Producer(engine) for _ in range(PRODUCERS)]
            for producer in producers:
                producer.start()
            time.sleep(2)
            alone_s = statistics.median(t for one in producers for t in one.took_s)
            for producer in producers:
                producer.took_s.clear()
            began_s = time.perf_counter()
            migrate.upgrade(postgres.url)
            took_s = time.perf_counter() - began_s
            for producer in producers:
                producer.stop.set()
                producer.join()
            with engine.connect() as connection:
                there, without = connection.execute(
                    text(
                        "SELECT count(*), count(*) FILTER (WHERE document IS NULL) FROM session"
                        " LEFT JOIN session_verdict ON session_verdict.session_id = session.id"
                    )
                ).one()
            engine.dispose()
    waited = sorted(t for one in producers for t in one.took_s)
    print(
        f"{took_s:.1f} s for {options.sessions:,} sessions, "
        f"{options.sessions / took_s:,.0f} a second; "
        f"{len(waited)} written meanwhile, each in {statistics.median(waited):.3f} s "
        f"({alone_s:.3f} s before), the longest in {waited[-1]:.2f} s; "
        f"{without} of {there:,} without a verdict"
    )
    return int(without > 0)


if __name__ == "__main__":
    sys.exit(main())
