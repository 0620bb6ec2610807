"""A server with the same content in every run, and a fixed clock.

The database has its own function ``now``, found before the built-in one, and time advances by a
minute with each step. Random ids are consecutive numbers, so that rows of the same time keep their
order.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from sqlalchemy import Engine, create_engine, text

from app.access.projects import create_project
from app.access.tokens import create_token
from app.fixes.applied import apply_fix
from app.hangs.receive import MOST_AT_ONCE_BYTES
from app.incidents.store import load_rules
from app.jobs.saved_views import save_view
from app.jobs.time_axis import write_note
from app.platform.identity import Right
from app.pulse.advance import advance_pulses
from tests.e2e.alerting import Place, let_it_fire
from tests.integration.api import bodies
from tests.integration.api.pulse.sending import bodies as pulse_bodies
from tests.integration.api.pulse.sending import slow_job
from tests.integration.hosts.build import probe_of
from tests.support.acting import machine_action
from tests.support.alerting import Alerting
from tests.support.hanging import Hanging, archived, pickled
from tests.support.plans import ask, do, small_spec
from tests.support.tensor import SLOW, TrainingJob
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from app.platform.container import Container
    from tests.support.receiver import Receiver

START: Final = datetime(2026, 3, 2, 9, tzinfo=UTC)
TICK: Final = timedelta(minutes=1)
JOB: Final = "dense-34b"
HOST: Final = "node-18"


@contextlib.contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        yield engine
    finally:
        engine.dispose()


class Clock:
    """The time of a database, which changes only with `tick`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Autovacuum would change the estimated sizes of tables, which a page shows, at any time.
        self.execute("ALTER SYSTEM SET autovacuum = off")
        self.execute("SELECT pg_reload_conf()")
        self.execute("CREATE SCHEMA frozen")
        self.execute("CREATE TABLE frozen.clock (at timestamptz)")
        self.execute("INSERT INTO frozen.clock VALUES (:at)", at=START)
        for name in ("now", "clock_timestamp"):
            self.execute(
                f"CREATE FUNCTION frozen.{name}() RETURNS timestamptz STABLE LANGUAGE sql"
                " RETURN (TABLE frozen.clock)"
            )
        database = engine.url.database
        self.execute(f"ALTER DATABASE {database} SET search_path = public, frozen, pg_catalog")

    def tick(self, span: timedelta = TICK) -> None:
        """Advance the time."""
        self.execute("UPDATE frozen.clock SET at = at + :span", span=span)

    @property
    def now(self) -> datetime:
        """Return the time."""
        with self.engine.connect() as connection:
            now: datetime = connection.execute(text("TABLE frozen.clock")).scalar_one()
        return now

    def execute(self, statement: str, **values: object) -> None:
        """Run one statement in its own transaction."""
        with self.engine.connect() as connection:
            connection.execute(text(statement), values)


@contextlib.contextmanager
def consecutive_ids() -> Iterator[None]:
    """Replace random ids by consecutive numbers."""
    numbers = itertools.count(1)
    with mock.patch.object(
        uuid, "uuid4", side_effect=lambda: uuid.UUID(int=next(numbers), version=4)
    ):
        yield


def fill(
    container: Container, client: httpx.Client, clock: Clock, receiver: Receiver
) -> dict[str, str]:
    """Store data for every page; return the values of the parameters in routes' addresses."""
    alerting = Alerting(container)
    channel = alerting.channel(receiver, "ops-bus")
    clock.tick()
    session = let_it_fire(Place("", alerting), JOB)
    [incident] = alerting.incidents()
    clock.tick()
    apply_fix(container, session, "replace_worker")
    note = write_note(container, JOB, words="learning rate halved")
    view = save_view(container, "slow jobs", "q=dense")
    plan = ask(container, small_spec())
    # A plan contains the duration of its search, so the clock is stopped for it.
    with mock.patch.object(time, "monotonic", return_value=time.monotonic()):
        do(container, plan)
    clock.tick()
    alerting.slow("llm")
    alerting.guessed("adrift", "container-1")
    TrainingJob(client, JOB).report(*SLOW, steps=3)
    hanging = Hanging(4, [[(0, 1), (2, 3)], [(0, 2), (1, 3)]] * 2, host_stops={3: 2})
    dumps = {f"_dump_{rank}": pickled(dump) for rank, dump in hanging.dumps().items()}
    hang = _sent(client, f"/api/v1/jobs/{JOB}/hangs", content=archived(dumps))
    large = archived({"notes": b" " * (MOST_AT_ONCE_BYTES + 1)})
    upload = _sent(client, f"/api/v1/jobs/{JOB}/hangs", content=large)
    clock.tick()
    for number in range(3):
        _sent(
            client,
            f"/api/v1/jobs/{JOB}/attempts",
            json={"run_id": f"run-{number}", "restart": 0},
        )
    job, _ = slow_job()
    job.start_ns = int(clock.now.timestamp() * 1e9)
    clock.tick(timedelta(seconds=job.dials.steps * job.dials.step_s))
    for body in pulse_bodies(job):
        _sent(client, f"/api/v1/jobs/{JOB}/attempts/1/pulse", content=body)
    while advance_pulses(container.everywhere(), timedelta(0)):
        pass
    probe = probe_of(660.0, 655.0, 500.0) | {"at": clock.now.isoformat()}
    _sent(client, f"/api/v1/hosts/{HOST}/probes", json=probe)
    _sent(client, "/api/v1/jobs/sent/sessions", content=bodies.parquet(), params=bodies.SIZES)
    everywhere = container.everywhere()
    create_project(everywhere, "other")
    create_token(everywhere, name="ci", rights=[Right.READ], project="default", owner="ops")
    clock.tick()
    alerting.pass_and_work()
    clock.tick()
    with container.uow() as tx:
        action = machine_action(incident.id, "node-7", tx.now)
        tx.session.add(action)
        action_id = action.id
        rule = load_rules(tx)[0]
    other = client.get("/api/v1/sessions", params={"job": JOB}).json()["sessions"][-1]["id"]
    things = {
        "session": session,
        "other": other,
        "job": JOB,
        "plan": plan.plan,
        "rule": rule.id,
        "channel": channel,
        "incident": incident.id,
        "host": HOST,
        "attempt": 1,
        "group": "0-0",
        "version": 1,
        "folder": "f" * 64,
        "hang": hang["hang"],
        "upload": upload["upload"],
        "note": note.id,
        "view": view.id,
        "machine_action": action_id,
    }
    return {name: str(value) for name, value in things.items()}


def settle(container: Container, clock: Clock) -> None:
    """Update PostgreSQL's estimates of row counts, which a page shows.

    A connection adds its own changes to the estimates only after it was idle for a while, or ends.
    """
    container.engine.dispose()
    writers = text(
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'paceline' AND query NOT LIKE 'LISTEN%'"
    )

    def ended() -> bool:
        with clock.engine.connect() as connection:
            return bool(connection.execute(writers).scalar_one())

    wait_for(ended, "connections to end")
    clock.execute("VACUUM ANALYZE")


def _sent(client: httpx.Client, address: str, **content: Any) -> dict[str, Any]:  # noqa: ANN401 - of httpx
    answer = client.post(address, **content)
    answer.raise_for_status()
    document: dict[str, Any] = answer.json() if answer.content else {}
    return document
