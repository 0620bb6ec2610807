"""What a prune of 10,000 sessions costs, and whom it holds up: ``python -m benchmarks.retention``.

Every session has a trace, a report and heatmaps, all over the rule's age but the newest ones and
the pinned. While the sweeper's own passes take them away, a user pins and unpins the sessions
that are still there: the longest wait is the longest lock.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import event, func, select, text, update

from app.access.models import DEFAULT_PROJECT_ID
from app.bootstrap import build
from app.platform.blobs import BlobPart
from app.platform.database import migrate
from app.platform.database.engine import make_engine
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.settings import Settings
from app.retention.models import DoomedBlob, Keep, RetentionRules
from app.retention.rules import keep_to_rules_now, set_rules
from app.sessions.models.tables import Session, StoredReport

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from app.platform.container import Container

DAYS: Final = 30
# One in this number of old sessions is pinned; as many more are young.
PINNED: Final = 100

FILL: Final = (
    "INSERT INTO job (project_id, name) SELECT 1, 'job-' || n FROM generate_series(1, 100) AS n",
    """
    INSERT INTO session (project_id, id, job_id, attempt, number, state, received_at, meta, dp, pp,
        tp, cp, vpp, world, trace_format, body_bytes, operations, steps, trace_blob, pinned)
    SELECT 1, gen_random_uuid(), 1 + n % 100, 1, n, 'analyzed',
        now() - interval '31 days' - n * interval '1 minute', '{}', 8, 4, 1, 1, 1, 32, 'parquet',
        1, 1, 20, gen_random_uuid(), n % :pinned = 0
    FROM generate_series(1, :sessions) AS n
    """,
    """
    UPDATE session SET received_at = now() WHERE number % :pinned = 1
    """,
    """
    INSERT INTO report (project_id, session_id, document_blob, heatmap_blob)
    SELECT 1, id, gen_random_uuid(), gen_random_uuid() FROM session
    """,
    """
    INSERT INTO blob_part (project_id, blob_id, part, data)
    SELECT 1, blob, 0, convert_to(repeat(md5(blob::text), size / 32), 'UTF8')
    FROM (
        SELECT trace_blob AS blob, :bytes AS size FROM session
        UNION ALL SELECT document_blob, 16384 FROM report
        UNION ALL SELECT heatmap_blob, 16384 FROM report
    ) AS blobs
    """,
    "VACUUM ANALYZE",
)


@dataclass
class Measured:
    """What the prune's connections did."""

    statements: int = 0
    transactions_s: list[float] = field(default_factory=list)
    _began_s: dict[int, float] = field(default_factory=dict)

    def watch(self, engine: Engine) -> None:
        """Count from now on."""
        event.listen(engine, "begin", self._begin)
        event.listen(engine, "commit", self._end)
        event.listen(engine, "rollback", self._end)
        event.listen(engine, "before_cursor_execute", self._statement)

    def _begin(self, connection: Connection) -> None:
        self._began_s[id(connection)] = time.perf_counter()

    def _end(self, connection: Connection) -> None:
        began_s = self._began_s.pop(id(connection), None)
        if began_s is not None:
            self.transactions_s.append(time.perf_counter() - began_s)

    def _statement(self, *_: object) -> None:
        self.statements += 1


class Other(threading.Thread):
    """A user who changes one session after another, the oldest first as the prune does."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._engine = make_engine(url, application_name="another user")
        self.waits_s: list[float] = []
        self.stop = threading.Event()

    def run(self) -> None:
        """Change sessions until told to stop."""
        drawn = random.Random(1)  # noqa: S311 - which session is no secret
        with self._engine.connect() as connection:
            while not self.stop.is_set():
                # Where the prune is about to be.
                next_ones = (
                    select(Session.id)
                    .where(Session.trace_blob.is_not(None), ~Session.pinned)
                    .order_by(Session.received_at)
                    .limit(400)
                )
                ids = list(connection.execute(next_ones).scalars())
                connection.rollback()
                if not ids:
                    break
                began_s = time.perf_counter()
                one = update(Session).where(Session.id == drawn.choice(ids))
                connection.execute(one.values(pinned=False))
                connection.commit()
                self.waits_s.append(time.perf_counter() - began_s)
        self._engine.dispose()


def left(container: Container) -> str:
    """Return in words what is left."""
    with container.everywhere().reading() as tx:
        traces, pinned = tx.session.execute(
            select(
                func.count().filter(Session.trace_blob.is_not(None)),
                func.count().filter(Session.trace_blob.is_not(None), Session.pinned),
            ).select_from(Session)
        ).one()
        reports = tx.session.execute(select(func.count()).select_from(StoredReport)).scalar_one()
        blobs = tx.session.execute(select(func.count()).select_from(BlobPart)).scalar_one()
        doomed = tx.session.execute(select(func.count()).select_from(DoomedBlob)).scalar_one()
    return (
        f"{traces:,} traces ({pinned:,} of them pinned), {reports:,} reports, {blobs:,} blobs; "
        f"{doomed:,} blobs still to be collected"
    )


def prune(container: Container, url: str, rules: RetentionRules) -> str:
    """Keep to the rules while a user works on the same sessions; return what it cost."""
    other = Other(url)
    set_rules(container, rules)
    measured = Measured()
    measured.watch(container.engine)
    other.start()
    began_s = time.perf_counter()
    removed = keep_to_rules_now(container)
    took_s = time.perf_counter() - began_s
    other.stop.set()
    other.join()
    times_ms = [1000 * one_s for one_s in measured.transactions_s]
    return (
        f"{removed:,} removed in {took_s:.1f} s by {measured.statements:,} statements in "
        f"{len(times_ms):,} transactions, the longest {max(times_ms):.0f} ms, the median "
        f"{statistics.median(times_ms):.1f} ms; of {len(other.waits_s):,} changes by another user "
        f"the longest took {1000 * max(other.waits_s, default=0):.0f} ms"
    )


def main() -> None:
    """Fill, prune and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=65_536, help="of each trace")
    parser.add_argument("--by-size", action="store_true", help="a rule of size in place of age")
    options = parser.parse_args()
    # The database runs as another account than root, which may not enter just any directory.
    with tempfile.TemporaryDirectory(prefix="paceline-retention-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "database") as postgres:
            migrate.upgrade(postgres.url)
            settings = Settings(database_url=postgres.url, data_dir=directory / "data")
            container = build(settings).within(DEFAULT_PROJECT_ID)
            values = {"sessions": options.sessions, "bytes": options.bytes, "pinned": PINNED}
            autocommitted = container.engine.execution_options(isolation_level="AUTOCOMMIT")
            with autocommitted.connect() as connection:
                for statement in FILL:
                    bound = {key: value for key, value in values.items() if f":{key}" in statement}
                    connection.execute(text(statement), bound)
                size = connection.execute(
                    text("SELECT pg_size_pretty(pg_database_size(current_database()))")
                ).scalar_one()
            print(f"filled ({size}): {left(container)}", flush=True)
            keep = Keep(bytes=0) if options.by_size else Keep(days=DAYS)
            print(prune(container, postgres.url, RetentionRules(keep, keep, keep)))
            print(f"left: {left(container)}")
            container.close()


if __name__ == "__main__":
    main()
