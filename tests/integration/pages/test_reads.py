"""Each page takes one transaction of few statements for any amount of data, and shows no secret."""

from __future__ import annotations

import csv
import io
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final

import httpx
import psycopg
import pytest
from sqlalchemy import event

from app.analysis.trace.encode import to_parquet
from app.incidents.channel_reads import list_channels
from app.incidents.everywhere import navigation
from app.incidents.store import load_rules
from app.platform.tasks.runs import claim
from app.pulse.advance import advance_pulses
from app.sessions.analyze import analyze_session
from app.sessions.chunks.absorb import absorb
from benchmarks.support.receiver import Reply
from tests import factories
from tests.integration.api.pulse.sending import bodies, slow_job
from tests.support.acting import machine_action
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.plans import ask, do, small_spec
from tests.support.project import build
from tests.support.pulses.minutes import Minutes
from tests.support.reads import read
from tests.support.receiver import Receiver
from tests.support.reports import unexplained
from tests.support.served import client_of_served
from tests.support.sessions import Stored, small_trace, store
from tests.support.tensor import SLOW, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from app.analysis.trace.model import Trace
    from app.platform.container import Container
    from app.platform.settings import Settings

# The statement with which the pool tests a connection before it is used again.
PING: Final = ";"

# Number of statements of each page, in its one transaction, including the statement of every page.
STATEMENTS: Final = {
    "/": 7,
    "/jobs/llm": 10,
    "/jobs/pulsing": 5,
    "/jobs/pulsing/live": 2,
    # a job with sessions and a pulse
    "/jobs/job-0": 10,
    "/jobs/llm/tensor": 3,
    "/jobs/llm/tensor/0-0": 8,
    "/sessions/{analyzed}": 10,
    "/sessions/{arriving}": 7,
    "/sessions/{no_verdict}": 9,
    "/compare?a={analyzed}&b={no_verdict}": 8,
    "/report": 5,
    "/?tab=figures": 3,
    "/ingest": 8,
    "/hosts": 8,
    "/hosts/{host}": 10,
    "/incidents": 9,
    "/incidents/{incident}": 10,
    "/incidents/{incident}/evidence": 4,
    "/channels": 3,
    "/channels/{channel}": 3,
    "/rules": 4,
    "/rules/{rule}": 4,
    "/plans": 2,
    "/plans/{plan}": 4,
    "/actions": 5,
    "/quotas": 3,
    "/retention": 5,
}


@dataclass
class Seen:
    """The statements and transactions that a database has received."""

    statements: list[str] = field(default_factory=list)
    transactions: int = 0

    def watch(self, engine: Engine) -> None:
        """Record every statement of an engine, also those that bypass SQLAlchemy."""
        statements = self.statements

        class Watched(psycopg.Cursor[Any]):
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as psycopg
                if str(query) != PING:
                    statements.append(str(query))
                return super().execute(query, *args, **kwargs)

        def connected(connection: psycopg.Connection[Any], _record: object) -> None:
            connection.cursor_factory = Watched

        def begun(_connection: object) -> None:
            self.transactions += 1

        event.listen(engine, "connect", connected)
        event.listen(engine, "begin", begun)


@dataclass(frozen=True, slots=True)
class Site:
    """A server, and the recorder of its statements."""

    container: Container
    client: httpx.Client
    seen: Seen

    def cost(self, path: str) -> tuple[int, int]:
        """Return the numbers of transactions and statements of a page."""
        self.seen.transactions = 0
        self.seen.statements.clear()
        self.client.get(path)
        return self.seen.transactions, len(self.seen.statements)


@pytest.fixture
def container(settings: Settings) -> Iterator[Container]:
    built = build(settings.model_copy(update={"alert_allowed_networks": LOOPBACK}))
    yield built
    built.close()


@pytest.fixture
def site(container: Container) -> Iterator[Site]:
    seen = Seen()
    seen.watch(container.engine)
    with client_of_served(container) as client:
        yield Site(container, client, seen)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(lambda _: Reply(400, b"no")) as running:
        yield running


def analyzed(container: Container, trace: Trace) -> Stored:
    stored = store(container, trace, job="llm")
    held = claim(container, stored.run)
    assert held is not None
    analyze_session(container, held)
    return stored


def send_chunks(client: httpx.Client, first: int, end: int) -> str:
    """Send a chunk of each producer to a session that stays open; return its id."""
    trace = factories.session(dp=3, pp=2).trace
    for producer in range(first, end):
        answer = client.put(
            f"/api/v1/jobs/chunked/attempts/1/sessions/1/chunks/p{producer}/0",
            content=to_parquet(factories.select(trace, trace.rank == producer % 6)),
            params={"dp": 3, "pp": 2, "world": 6},
        )
        assert answer.status_code == 202, answer.text
    found: str = answer.json()["session"]
    return found


def send_pulse(site: Site, first: int, end: int) -> None:
    """Store more ranks, and more minutes of a pulse, for jobs with and without sessions."""
    for job in ("pulsing", "job-0"):
        if not first:
            for body in bodies(slow_job()[0]):
                answer = site.client.post(f"/api/v1/jobs/{job}/attempts/1/pulse", content=body)
                assert answer.status_code == 202
            while advance_pulses(site.container, timedelta(0)):
                pass
        Minutes(ranks=8 * end, minutes=10 * end).keep(site.container, job)


def grow(site: Site, receiver: Receiver, first: int, end: int) -> dict[str, object]:
    """Store an object of every kind for each number; return the parameters of addresses."""
    container, alerting = site.container, Alerting(site.container)
    for number in range(first, end):
        # Only two channels are enabled, because all messages to all channels would be hundreds.
        alerting.channel(receiver, f"hook-{number}", enabled=number < 2)
        alerting.slow(f"job-{number}")
        alerting.slow(f"over-{number}")
        alerting.slow("llm")
        last = analyzed(container, small_trace())
        plan = ask(container, small_spec(), name=f"plan {number}")
        assert do(container, plan)
    alerting.pass_and_work()
    with container.uow() as tx:
        for number in range(first, end):
            tx.session.add(machine_action(uuid.uuid4(), f"node-{number}", tx.now))
    for number in range(first, end):
        alerting.fast(f"over-{number}")
        straggling = TrainingJob(site.client, group=f"0-{number}")
        straggling.report(*SLOW, steps=3)
    site.client.put("/api/v1/jobs/llm/tp/mode", json={"mode": "apply", "by": f"ann {end}"})
    send_pulse(site, first, end)
    skewed = analyzed(container, unexplained())
    arriving = send_chunks(site.client, first, end)
    while absorb(container):
        pass
    return {
        "analyzed": last.session,
        "no_verdict": skewed.session,
        "arriving": arriving,
        "incident": alerting.incidents()[0].id,
        "channel": read(container, list_channels)[0].id,
        "rule": read(container, load_rules)[0].id,
        "plan": plan.plan,
        "host": next(iter(small_trace().meta.hosts.values())),
    }


def test_a_page_is_one_transaction_of_as_many_statements_however_many_rows_there_are(
    site: Site, receiver: Receiver
) -> None:
    pages = {path: (1, count) for path, count in STATEMENTS.items()}
    for first, end in ((0, 2), (2, 6)):
        names = grow(site, receiver, first, end)
        site.client.get("/")
        assert {path: site.cost(path.format(**names)) for path in pages} == pages
    others = ("/installation", "/access", "/access/audit", "/access/incidents")
    for path in (*pages, *others, "/incidents/everywhere"):
        for file in files_of_tables(site.client.get(path.format(**names)).text):
            answer = site.client.get(file)
            assert answer.headers.get("Content-Type") == "text/csv; charset=utf-8", (path, file)
            header, *rows = csv.reader(io.StringIO(answer.text))
            assert rows, (path, file)
            assert {len(row) for row in rows} == {len(header)}, (path, file)


class Tables(HTMLParser):
    """The CSV file of each table of a page, and the links that download files."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[str] = []
        self.offered: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "table" and "data-csv" in found:
            self.named.append(found["data-csv"] or "")
        if tag == "a" and "data-csv" in found:
            self.offered.add(found["href"] or "")


def files_of_tables(page: str) -> set[str]:
    """Return the files of a page's tables, after checking that each has a link."""
    seen = Tables()
    seen.feed(page)
    assert seen.offered.issuperset(seen.named), set(seen.named) - seen.offered
    return set(seen.named)


def test_pages_are_drawn_without_the_key_of_the_channels_secrets(
    site: Site, receiver: Receiver
) -> None:
    channel = Alerting(site.container).channel(receiver)
    (site.container.settings.data_dir / "secret.key").unlink()
    for path in ("/", "/incidents", "/rules", "/plans", "/channels", f"/channels/{channel}"):
        answer = site.client.get(path)
        assert answer.status_code == 200
        assert "cannot be decrypted" not in answer.text
    assert read(site.container, navigation).dead_channels == ()
    answer = site.client.get(f"/api/v1/channels/{channel}")
    assert answer.json()["secrets"] == {"url": "127.0.0.1"}, "the host of an address is shown"


def test_a_page_of_an_unknown_object_is_one_transaction_too(site: Site) -> None:
    site.client.get("/")
    unknown = uuid.uuid4()
    for place in ("jobs", "sessions", "incidents", "channels", "rules", "plans"):
        assert site.client.get(f"/{place}/{unknown}").status_code == 404
        assert site.cost(f"/{place}/{unknown}")[0] == 1
