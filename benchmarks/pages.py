"""What pages weigh and take at three sizes: ``python -m benchmarks.pages``.

A server of its own with a database of its own: a small installation, one of a thousand jobs with
ten sessions each, and one session of 1,024 × 16 workers. Sessions of the second are rows copied
from an analyzed one, because only lists read them. Of the last also what its page asks for: the map
and the timeline of another step each time, and a question. Bytes are those of compressed bodies as
a browser gets them, elements those of the page before any script, statements those that the
database got, and times medians on this machine, over the loopback address, with compression.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import psycopg
from sqlalchemy import event, select, text

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.formats.parquet import PARQUET
from app.analysis.trace.model import Sizes
from app.bootstrap import build
from app.db import migrate
from app.db.embedded.server import EmbeddedPostgres
from app.db.models.access import DEFAULT_PROJECT_ID
from app.db.models.sessions import Session
from app.db.models.tasks import TaskRun
from app.db.states import SessionState, TaskState
from app.run.http import HttpServer, address_of, listen
from app.services.sessions.analyze import analyze_session
from app.services.tasks.task_runs import claim
from app.settings import Settings
from app.web import create_app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from app.bootstrap import Container

SMALL: Final = JobModel(Sizes(dp=4, pp=4, tp=4), microbatches=8, steps=16, name="small")
LARGE: Final = JobModel(Sizes(dp=1024, pp=16), microbatches=8, steps=6, name="large")
JOBS: Final = 1000
SESSIONS: Final = 10
RUNS: Final = 5
# What browsers say that they take.
BROWSER: Final = {"Accept": "text/html", "Accept-Encoding": "gzip, deflate, br, zstd"}
# What asks whether a connection is alive is no statement of a page.
PING: Final = ";"
# The DP ranks of the timeline that a page of a session draws.
LANES: Final = re.compile(r'id="perfetto"[^>]*?/timeline\?step=\d+((?:&amp;dp=\d+)*)"')

# A copy of a session for each job and number, half an hour apart, slowed down by chance.
COPY: Final = """
INSERT INTO session ({columns})
SELECT {values}
FROM session, job, generate_series(1, :sessions) AS copy
WHERE session.id = :template AND job.name LIKE 'copied-%'
"""
COPIED: Final = {
    "id": "gen_random_uuid()",
    "job_id": "job.id",
    "number": "copy",
    "content_sha256": "NULL",
    "received_at": "now() - (:sessions - copy) * interval '30 minutes' - interval '1 minute'",
    "headline_slowdown": "1 + random() * 0.5",
}


@dataclass(frozen=True, slots=True)
class Weighed:
    """A page as it was answered."""

    size: str
    page: str
    compressed_bytes: int
    plain_bytes: int
    elements: int
    statements: int
    time_s: float


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del tag, attrs
        self.count += 1


@dataclass
class _Statements:
    """Counts what a database is asked, also past SQLAlchemy."""

    count: int = 0

    def watch(self, engine: Engine) -> None:
        seen = self

        class Watched(psycopg.Cursor[Any]):
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as psycopg
                seen.count += str(query) != PING
                return super().execute(query, *args, **kwargs)

        def connected(connection: psycopg.Connection[Any], _record: object) -> None:
            connection.cursor_factory = Watched

        event.listen(engine, "connect", connected)


def elements(html: str) -> int:
    """Return how many elements a page has before any script."""
    parser = _Elements()
    parser.feed(html)
    return parser.count


def table(weighed: Sequence[Weighed]) -> str:
    """Return the figures for a person."""
    head = ("size", "page", "compressed", "plain", "elements", "statements", "time")
    rows = [
        (
            page.size,
            page.page,
            f"{page.compressed_bytes / 1000:.1f} kB",
            f"{page.plain_bytes / 1000:.0f} kB",
            f"{page.elements:,}",
            str(page.statements),
            f"{1000 * page.time_s:.0f} ms",
        )
        for page in weighed
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    texts = 2
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )


class _Server:
    """A running server, and what fills and weighs it."""

    def __init__(self, container: Container, client: httpx.Client, seen: _Statements) -> None:
        self._container, self._client, self._seen = container, client, seen

    def send(self, model: JobModel) -> uuid.UUID:
        """Send a session with a slow worker, and analyze it here."""
        trace = synthesize(model, [SlowWorker((1, 1), 1.8)], seed=1).trace
        sizes = model.sizes
        parameters = {"dp": sizes.dp, "pp": sizes.pp, "tp": sizes.tp, "world": sizes.world}
        answer = self._client.post(
            f"/api/v1/jobs/{model.name}/sessions",
            content=to_parquet(trace),
            headers={"Content-Type": PARQUET.media_types[0]},
            params=parameters,
        )
        answer.raise_for_status()
        del trace
        queued = select(TaskRun.id).where(TaskRun.state == TaskState.QUEUED)
        with self._container.uow() as tx:
            runs = list(tx.session.execute(queued).scalars())
        for run in runs:
            held = claim(self._container, run)
            if held is not None:
                analyze_session(self._container, held)
        session = answer.json()["session"]
        state = self._client.get(f"/api/v1/sessions/{session}").json()["state"]
        if state != SessionState.ANALYZED:
            raise RuntimeError(f"The session of {model.name} is {state}")
        return uuid.UUID(session)

    def copy(self, template: uuid.UUID, jobs: int, sessions: int) -> None:
        """Add jobs with sessions that only lists read."""
        columns = [column.name for column in Session.__table__.columns]
        values = [COPIED.get(name, f"session.{name}") for name in columns]
        statement = COPY.format(columns=", ".join(columns), values=", ".join(values))
        with self._container.engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO job (project_id, name) "
                    "SELECT :project, 'copied-' || n FROM generate_series(1, :jobs) AS n"
                ),
                {"project": DEFAULT_PROJECT_ID, "jobs": jobs},
            )
            connection.execute(text(statement), {"template": template, "sessions": sessions})
            connection.execute(text("ANALYZE"))

    def weigh(self, size: str, page: str, address: str) -> Weighed:
        """Ask for a page as a browser does, several times."""
        plain = self._client.get(address, headers=BROWSER)
        plain.raise_for_status()
        times, compressed = [], 0
        for _ in range(RUNS):
            self._seen.count = 0
            start = time.perf_counter()
            with self._client.stream("GET", address, headers=BROWSER) as answer:
                compressed = sum(len(part) for part in answer.iter_raw())
            times.append(time.perf_counter() - start)
        return Weighed(
            size=size,
            page=page,
            compressed_bytes=compressed,
            plain_bytes=len(plain.content),
            elements=elements(plain.text),
            statements=self._seen.count,
            time_s=statistics.median(times),
        )

    def weigh_choices(self, size: str, session: uuid.UUID) -> list[Weighed]:
        """Ask for what the page of a session asks for: another step each time, and a question."""
        api = f"/api/v1/sessions/{session}"
        steps = self._client.get(f"{api}/report").json()["steps"]["analyzed"]
        page = self._client.get(f"/sessions/{session}").text
        [asked] = set(LANES.findall(page))
        ranks = asked.replace("&amp;", "&")
        times: dict[str, list[float]] = {"step: map": [], "step: timeline": [], "what-if": []}
        sizes = dict.fromkeys(times, (0, 0))
        for run in range(RUNS):
            step = steps[run % len(steps)]
            question = {
                "changes": [
                    {"select": {"workers": [[1, 1]], "steps": [step]}, "duration": "peers"},
                ]
            }
            requests = {
                "step: map": ("GET", f"{api}/heatmaps?step={step}", None),
                "step: timeline": ("GET", f"{api}/timeline?step={step}{ranks}&format=lanes", None),
                "what-if": ("POST", f"{api}/what-if", question),
            }
            for name, (method, address, body) in requests.items():
                start = time.perf_counter()
                answer = self._client.request(method, address, headers=BROWSER, json=body)
                times[name].append(time.perf_counter() - start)
                answer.raise_for_status()
                sizes[name] = (answer.num_bytes_downloaded, len(answer.content))
        return [
            Weighed(size, name, *sizes[name], 0, 0, statistics.median(found))
            for name, found in times.items()
        ]


def measure(directory: Path, jobs: int, sessions: int, large: JobModel) -> list[Weighed]:
    """Return the figures of every page; `directory` takes the database."""
    with EmbeddedPostgres(directory, durable=False) as postgres:
        settings = Settings(database_url=postgres.url, data_dir=directory / "data", port=0)
        migrate.upgrade(postgres.url)
        container = build(settings).within(DEFAULT_PROJECT_ID)
        seen = _Statements()
        seen.watch(container.engine)
        listener = listen(settings)
        http = HttpServer(create_app(container), listener)
        http.start(lambda: False)
        try:
            with httpx.Client(
                base_url=address_of(listener), timeout=600, trust_env=False
            ) as client:
                return _weigh_all(_Server(container, client, seen), jobs, sessions, large)
        finally:
            http.stop()
            container.close()


def _weigh_all(server: _Server, jobs: int, sessions: int, large: JobModel) -> list[Weighed]:
    name = SMALL.name
    template = server.send(SMALL)
    weighed = [
        server.weigh("small", page, address)
        for page, address in (
            ("fleet", "/"),
            ("job", f"/jobs/{name}"),
            ("session", f"/sessions/{template}"),
            ("incidents", "/incidents"),
            ("rules", "/rules"),
            ("channels", "/channels"),
            ("plans", "/plans"),
            ("quotas", "/quotas"),
        )
    ]
    server.copy(template, jobs, sessions)
    fleet = f"{jobs:,} × {sessions}"
    for page, address in (
        ("fleet", "/"),
        ("job", "/jobs/copied-1"),
        ("session", f"/sessions/{template}"),
        ("incidents", "/incidents"),
        ("hosts", "/hosts"),
    ):
        weighed.append(server.weigh(fleet, page, address))
    session = server.send(large)
    sizes = large.sizes
    size = f"{sizes.dp:,} × {sizes.pp}"
    weighed.append(server.weigh(size, "session", f"/sessions/{session}"))
    weighed += server.weigh_choices(size, session)
    return weighed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--dp", type=int, default=LARGE.sizes.dp, help="DP ranks of the large one")
    arguments = parser.parse_args()
    large = JobModel(
        Sizes(dp=arguments.dp, pp=LARGE.sizes.pp),
        microbatches=LARGE.microbatches,
        steps=LARGE.steps,
        name=LARGE.name,
    )
    # The database runs as another account than root, which may not enter just any directory.
    with tempfile.TemporaryDirectory(prefix="paceline-pages-") as name:
        Path(name).chmod(0o755)
        print(table(measure(Path(name), arguments.jobs, arguments.sessions, large)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
