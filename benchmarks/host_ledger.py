"""The list of hosts at 400,000 readings: ``python -m benchmarks.host_ledger``.

In one run, over the same rows: the list as it is read, against the plain way, which prices every
reading and adds them up in one statement. The ratio is what counts; times are this machine's. Then
pages, files and the API over HTTP, and what writing and deleting a session's readings takes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
from sqlalchemy import func, select, text

from app.access.models import DEFAULT_PROJECT_ID
from app.bootstrap import build
from app.hosts.costs import Show, Span, priced
from app.hosts.listed import list_hosts
from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.settings import Settings
from app.run.application import create_app
from app.run.http import HttpServer, address_of, listen
from app.web.lists import PageRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.platform.container import Container
    from app.platform.database.unit_of_work import Reads

JOBS: Final = 100
SESSIONS: Final = 40
HOSTS_OF_A_JOB: Final = 100
HOSTS: Final = 3000
# Whatever else the machine does only adds to a time: the least of these counts.
RUNS: Final = 9
PATHS: Final = (
    "/hosts",
    "/hosts?show=all&range=all",
    "/hosts?range=7d",
    "/hosts?q=job-7+worker",
    "/hosts.csv",
    "/hosts.csv?show=all&range=all",
    "/api/v1/hosts",
    "/api/v1/hosts?limit=1000",
    "/hosts/node-100",
)
BROWSER: Final = {"Accept-Encoding": "gzip"}

SENT: Final = """
INSERT INTO job (project_id, name) SELECT :project, 'job-' || n FROM generate_series(1, :jobs) AS n;
INSERT INTO session (project_id, id, job_id, attempt, number, state, received_at, meta, dp, pp, tp,
    cp, vpp, world, trace_format, body_bytes, operations, steps)
SELECT :project, gen_random_uuid(), job.id, 1, n, 'analyzed',
    now() - n * interval '15 hours', '{}', 8, 1, 8, 1, 1, 800, 'parquet', 1, 1, 20
FROM job, generate_series(1, :sessions) AS n;
"""
# One reading in fifty is slow; a host has eight GPUs.
READ: Final = """
INSERT INTO host_reading (project_id, session_id, host, job_id, received_at, ranks, workers,
    slowdown, computing, cause, lost_each_hour, measured_s, gpus)
SELECT :project, session.id, 'node-' || ((session.job_id * 29 + n) % :hosts), session.job_id,
    session.received_at, 8, 8, 1 + random() * 0.05, 1.0,
    CASE WHEN n % 50 = session.number % 50 THEN 'slow_worker' END,
    CASE WHEN n % 50 = session.number % 50 THEN 12.5 ELSE 0 END, 60, gpus.list
FROM session, generate_series(1, :here) AS n, (
    SELECT jsonb_agg(jsonb_build_object('gpu', g::text, 'slowdown', 1.01, 'computing', 1.0,
        'slow', false)) AS list FROM generate_series(0, 7) AS g
) AS gpus
"""


def fill(container: Container, sessions: int) -> int:
    """Make jobs with sessions and readings; return how many of the latter."""
    values = {
        "project": DEFAULT_PROJECT_ID,
        "jobs": JOBS,
        "sessions": sessions,
        "hosts": HOSTS,
        "here": HOSTS_OF_A_JOB,
    }
    with container.engine.begin() as connection:
        for statement in (*SENT.strip().split(";\n"), READ):
            connection.execute(text(statement.rstrip(";")), values)
    with container.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
        return int(connection.execute(text("SELECT count(*) FROM host_reading")).scalar_one())


def plain(tx: Reads) -> None:
    """Add up all readings in the plain way."""
    one = priced(tx, Span()).c
    tx.session.execute(
        select(
            one.host,
            func.sum(one.cost),
            func.max(one.ranks),
            func.count(),
            func.count(one.job_id.distinct()),
            func.max(one.slowdown),
            func.max(one.computing),
            func.array_agg(one.cause.distinct()),
            func.min(one.received_at),
            func.max(one.received_at),
        ).group_by(one.host)
    ).all()


def listed(tx: Reads) -> None:
    """Read the first page of the list."""
    list_hosts(tx, Span(), PageRequest(), show=Show.BLAMED, alike_from=1.1)


def rewrite(container: Container) -> None:
    """Write the readings of the latest session anew, as an analysis that runs again does."""
    with container.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TEMP TABLE again ON COMMIT DROP AS SELECT * FROM host_reading"
                " WHERE session_id = (SELECT id FROM session ORDER BY number, job_id LIMIT 1)"
            )
        )
        connection.execute(
            text("DELETE FROM host_reading WHERE session_id IN (SELECT session_id FROM again)")
        )
        connection.execute(text("INSERT INTO host_reading SELECT * FROM again"))


def over_http(container: Container) -> dict[str, float]:
    """Return the least time of each address, seconds."""
    listener = listen(container.settings)
    http = HttpServer(create_app(container.everywhere()), listener)
    http.start(lambda: False)
    found = {}
    try:
        with httpx.Client(
            base_url=address_of(listener), trust_env=False, timeout=120, headers=BROWSER
        ) as client:
            for path in PATHS:
                found[path] = least_s(partial(_get, client, path))
    finally:
        http.stop()
    return found


def _get(client: httpx.Client, path: str) -> None:
    client.get(path).raise_for_status()


def least_s(do: Callable[[], object]) -> float:
    """Return the least time of several runs after one that does not count, seconds."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        do()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def took_s(container: Container, do: Callable[[Reads], None]) -> float:
    """Return the least time of reading, seconds."""

    def once() -> None:
        with container.reading() as tx:
            do(tx)

    return least_s(once)


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="of each job")
    arguments = parser.parse_args()
    # The database runs as another account than root, which may not enter just any directory.
    with tempfile.TemporaryDirectory(prefix="paceline-hosts-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory, durable=False) as postgres:
            migrate.upgrade(postgres.url)
            settings = Settings(database_url=postgres.url, data_dir=directory / "data", port=0)
            container = build(settings).within(DEFAULT_PROJECT_ID)
            try:
                readings = fill(container, arguments.sessions)
                plain_s, list_s = took_s(container, plain), took_s(container, listed)
                rewrite_s = least_s(lambda: rewrite(container))
                paths = over_http(container)
            finally:
                container.close()
    print(f"{readings:,} readings of {HOSTS:,} hosts")
    print(f"the plain way  {1000 * plain_s:.0f} ms")
    print(f"the list       {1000 * list_s:.0f} ms, {list_s / plain_s:.2f} of it")
    print(f"a session of {HOSTS_OF_A_JOB} hosts written anew  {1000 * rewrite_s:.0f} ms")
    for path, path_s in paths.items():
        print(f"{path}  {1000 * path_s:.0f} ms")


if __name__ == "__main__":
    main()
