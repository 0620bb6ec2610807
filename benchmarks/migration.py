"""How long a migration holds its locks on tables with many rows.

Fills a database at the revision before with rows of every large table, migrates it, and prints the
seconds and the database's size. Nobody writes to the tables meanwhile: that is what it measures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from sqlalchemy import text

from app.db import migrate
from app.db.embedded.server import EmbeddedPostgres
from app.db.engine import make_engine

# One session has so many chunks, and each of these a blob.
CHUNKS_A_SESSION: Final = 10

FILL: Final = (
    "INSERT INTO job (name) SELECT 'job-' || n FROM generate_series(1, 1000) n",
    """
    INSERT INTO session (id, job_id, attempt, number, state, received_at, state_changed_at, meta,
        dp, pp, tp, cp, vpp, world, trace_format, body_bytes, operations, steps)
    SELECT gen_random_uuid(), 1 + n % 1000, 1, n, 'analyzed', now() - n * interval '1 s', now(),
        jsonb_build_object('framework', 'megatron', 'labels', repeat('x', 400)),
        4, 4, 1, 1, 1, 16, 'parquet', 1000000, 100000, 20
    FROM generate_series(1, :sessions) n
    """,
    """
    INSERT INTO intake (session_id, chunks, producers, last_chunk_at, longest_gap_s, sealed_at,
        refused_chunks, refused_bytes)
    SELECT id, 10, 10, now(), 1, now(), 0, 0 FROM session
    """,
    """
    INSERT INTO chunk (session_id, producer, number, sha256, received_at, final, body_bytes,
        operations, cells, blob)
    SELECT id, 'rank-' || n, 0, sha256(id::text::bytea), now(), false, 1000, 100, '{1}',
        gen_random_uuid()
    FROM session, generate_series(1, :chunks) n
    """,
    """
    INSERT INTO task_run (id, kind, subject_id, state, attempt, created_at, finished_at)
    SELECT gen_random_uuid(), 'analyze_session', id, 'done', 1, now(), now()
    FROM session, generate_series(1, :chunks) n
    """,
    """
    INSERT INTO blob_part (blob_id, part, data)
    SELECT gen_random_uuid(), 0, convert_to(repeat(md5(random()::text), 10), 'UTF8')
    FROM session, generate_series(1, :chunks) n
    """,
    """
    INSERT INTO report (session_id, document_blob, heatmap_blob)
    SELECT id, gen_random_uuid(), gen_random_uuid() FROM session
    """,
    "VACUUM ANALYZE",
)


def main() -> int:
    """Fill, migrate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--revision", default="0011")
    parser.add_argument("--before", default="0010")
    parser.add_argument("--sessions", type=int, default=100_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-migration-") as name:
        Path(name).chmod(0o755)
        with EmbeddedPostgres(Path(name) / "database") as postgres:
            migrate.upgrade(postgres.url, asked.before)
            engine = make_engine(postgres.url, application_name="fill")
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                for statement in FILL:
                    sizes = {"sessions": asked.sessions, "chunks": CHUNKS_A_SESSION}
                    bound = {key: value for key, value in sizes.items() if f":{key}" in statement}
                    connection.execute(text(statement), bound)
                size = connection.execute(
                    text("SELECT pg_size_pretty(pg_database_size(current_database()))")
                ).scalar_one()
            print(f"filled: {size}", file=sys.stderr)
            began_s = time.perf_counter()
            migrate.upgrade(postgres.url, asked.revision)
            took_s = time.perf_counter() - began_s
            engine.dispose()
    rows = asked.sessions * CHUNKS_A_SESSION
    print(
        f"{asked.revision}: {took_s:.1f} s with {asked.sessions:,} sessions, and {rows:,} chunks, "
        f"task runs and blobs ({size})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
