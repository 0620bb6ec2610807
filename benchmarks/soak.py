"""Soak test of alerts: many flapping incidents, killed workers, failing channels.

The whole path is real: PostgreSQL, the sweeper, the broker, worker processes that are killed with
SIGKILL every few seconds, and HTTP to a receiver that fails in the usual ways. Only times are
shorter: intervals of groups are seconds, and later attempts wait a second or two.

The messages that the receiver accepted are judged (`benchmarks.soak_judge`). The last line is
``due 1234, delivered 1234, lost 0, out of order 0``; other results fail.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select, text

from app.access.models import DEFAULT_PROJECT_ID
from app.analysis.report.session_verdict import SuspectedCause
from app.bootstrap import build
from app.incidents.channel_writes import create_channel
from app.incidents.models.facts import Facts
from app.incidents.models.rules import CauseFound, Rule
from app.incidents.models.tables import AlertDelivery, AlertGroup, DeliveryState
from app.incidents.rule_store import delete_rule, save_rule
from app.incidents.store import load_rules
from app.installation.models import WorkerHeartbeat
from app.installation.sweep import sweep
from app.jobs.models import Job
from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.settings import Settings
from benchmarks.soak_judge import CHANNELS, Made, Receiver, Verdict, judge
from benchmarks.support.stored import evaluate_session
from benchmarks.support.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container

FAILING: Final = 0.3
WORKERS: Final = 3
KILL_EVERY_S: Final = 4.0
CAUSES: Final = 4

# Updates that shorten waits: table, change, and condition of the rows.
HURRIED: Final = (
    (
        "alert_delivery",
        "next_attempt_at = now() + random() * interval '2 s'",
        "state = 'waiting' AND next_attempt_at > now() + interval '2 s'",
    ),
    ("alert_channel", "hold_until = NULL", "hold_until > now() + interval '1 s'"),
    # A minute of the storm limit is two seconds, so that single messages and digests alternate.
    (
        "alert_delivery",
        "started_at = started_at - interval '1 h'",
        "started_at BETWEEN now() - interval '10 min' AND now() - interval '2 s'",
    ),
)

# Rows that the end waits for, and the time without progress after which they count as lost.
STALLED_S: Final = 120.0

RULE: Final = Rule(uuid.uuid4(), "Soak", CauseFound(0.9, 0.8), consecutive=1, clear_sessions=1)


class Workers:
    """Worker processes of the queue `io`; every few seconds the oldest is killed.

    Only a worker that takes messages is killed, and only if another one does: on a busy machine a
    worker needs seconds to start, and killing workers before that would test nothing.
    """

    def __init__(self, container: Container, log: Path) -> None:
        self._container, self._log = container, log
        self._running: list[Worker] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._torment, name="torment")
        self.killed = 0

    def start(self) -> None:
        """Start the workers, and the thread that kills them."""
        self._running = [self._start() for _ in range(WORKERS)]
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and all workers."""
        self._stop.set()
        self._thread.join()
        for worker in self._running:
            worker.kill()

    def _start(self) -> Worker:
        return Worker(self._container, self._log, "io")

    def _torment(self) -> None:
        while not self._stop.wait(KILL_EVERY_S):
            with self._container.uow() as tx:
                ready = set(tx.session.execute(select(WorkerHeartbeat.pid)).scalars())
            victims = [worker for worker in self._running if worker.pid in ready]
            if len(victims) > 1:
                victims[0].kill()
                self.killed += 1
                self._running.remove(victims[0])
                self._running.append(self._start())


@contextlib.contextmanager
def background(container: Container) -> Iterator[None]:
    """Sweep, and shorten waits, while the context is open."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.3):
            sweep(container)
            hurry(container)

    thread = threading.Thread(target=run, name="sweeper")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def hurry(container: Container) -> None:
    """Shorten waits of minutes and hours to a second or two.

    Each row is changed in its own transaction, and rows that a worker has locked are skipped:
    workers lock rows in their own order, so that a transaction that holds several could deadlock.
    """
    for table, change, which in HURRIED:
        with container.engine.begin() as connection:
            connection.execute(
                text(
                    f"UPDATE {table} SET {change} WHERE id IN "  # noqa: S608 - of this file
                    f"(SELECT id FROM {table} WHERE {which} FOR UPDATE SKIP LOCKED)"
                )
            )


def prepare(container: Container, receiver: Receiver, jobs: int) -> list[int]:
    """Create channels, one rule, and jobs; return the jobs."""
    with container.reading() as tx:
        rules = load_rules(tx)
    for rule in rules:
        delete_rule(container, rule.id)
    save_rule(container, RULE, new=True)
    for name in CHANNELS:
        create_channel(container, name=name, kind="webhook", config={"url": receiver.url(name)})
    with container.uow() as tx:
        rows = [Job(name=f"job-{number}") for number in range(jobs)]
        tx.session.add_all(rows)
        tx.session.flush()
        return [row.id for row in rows]


def produce(container: Container, jobs: list[int], incidents: int, seed: int) -> Made:
    """Make jobs slow and fast in turns until there were `incidents` incidents."""
    choice = random.Random(seed)  # noqa: S311 - a flapping job
    numbers: Counter[int] = Counter()
    slow: dict[int, frozenset[int]] = {}
    made = 0
    while made < incidents:
        job = choice.choice(jobs)
        before = slow.get(job, frozenset())
        wanted = min(CAUSES, incidents - made)
        now = frozenset(choice.sample(range(CAUSES), choice.randint(0, wanted)))
        if now == before:
            continue
        numbers[job] += 1
        _session(container, job, numbers[job], now)
        made += len(now - before)
        slow[job] = now
    with container.uow() as tx:
        names = {row.id: row.name for row in tx.session.execute(select(Job.id, Job.name))}
    hosts = {
        names[job]: frozenset(_host(names[job], cause) for cause in causes)
        for job, causes in slow.items()
    }
    return Made(made, hosts)


def _host(job: str, cause: int) -> str:
    # Each job has its own host, because several jobs that blame one host share an incident.
    return f"{job}-node-{cause}"


def _session(container: Container, job_id: int, number: int, causes: frozenset[int]) -> None:
    """Store the rows that an analysis of a session writes for alerts, and evaluate the rules."""
    with container.uow() as tx:
        name = tx.session.execute(select(Job.name).where(Job.id == job_id)).scalar_one()
        facts = Facts(
            session=uuid.uuid4(),
            job=name,
            attempt=1,
            number=number,
            received_at=tx.now,
            slowdown=1.0 + 0.1 * len(causes),
            causes=tuple(
                SuspectedCause("slow_worker", (_host(name, cause),), confidence=0.95)
                for cause in causes
            ),
        )
        evaluate_session(container, tx, job_id, facts)


def drain(container: Container) -> None:
    """Wait until no message is due and no delivery is under way, or until there is no progress."""
    last, since_s = "", time.monotonic()
    while True:
        with container.uow() as tx:
            counts = tx.session.execute(
                select(AlertDelivery.state, func.count()).group_by(AlertDelivery.state)
            ).all()
            soon = tx.session.execute(
                select(func.count()).where(
                    AlertGroup.flush_at < func.now() + text("interval '1 h'")
                )
            ).scalar_one()
        states = {str(state): count for state, count in sorted(counts)}
        if not soon and not any(states.get(state) for state in DeliveryState.UNDERWAY):
            return
        seen = f"{soon} groups to look after, {states}"
        if seen != last:
            print(f"{time.strftime('%H:%M:%S')}  {seen}", file=sys.stderr)
            last, since_s = seen, time.monotonic()
        elif time.monotonic() - since_s > STALLED_S:
            return
        time.sleep(2.0)


def run(incidents: int, jobs: int, seed: int, directory: Path, receiver: Receiver) -> Verdict:
    """Run the soak test, print its actions, and return the verdict."""
    directory.chmod(0o711)  # the database's account passes through it
    with (
        EmbeddedPostgres(directory / "data", durable=False) as postgres,
        receiver,
        contextlib.ExitStack() as running,
    ):
        migrate.upgrade(postgres.url)
        settings = Settings(
            database_url=postgres.url,
            data_dir=directory / "paceline",
            external_url="https://paceline.example",
            alert_allowed_networks=("127.0.0.1/32",),
            alert_attempt_limit_s=2.0,
            alert_group_wait_s=1.0,
            alert_group_interval_s=3.0,
            lease_s=5.0,
            lease_renew_s=1.5,
            republish_after_s=2.0,
        )
        container = build(settings).within(DEFAULT_PROJECT_ID)
        running.callback(container.close)
        ids = prepare(container, receiver, jobs)
        workers = Workers(container, directory / "workers.log")
        started_s = time.monotonic()
        with background(container):
            workers.start()
            try:
                made = produce(container, ids, incidents, seed)
                produced_s = time.monotonic() - started_s
                drain(container)
            finally:
                workers.stop()
        total_s = time.monotonic() - started_s
        verdict = judge(container, receiver, made)
        with container.uow() as tx:
            superseded = tx.session.execute(
                select(func.count()).where(AlertDelivery.state == "superseded")
            ).scalar_one()
        print(
            f"{made.incidents} incidents over {jobs} jobs in {produced_s:.0f} s, "
            f"{total_s:.0f} s in all; {receiver.requests} requests, {receiver.failed} of them "
            f"failed, {receiver.repeated} came again under their id, {len(receiver.digests)} "
            f"digests, {workers.killed} workers "
            f"killed, {superseded} superseded"
        )
        return verdict


def main() -> None:
    """Run the soak test; exit status 1 if a message was lost or came out of order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    # On SIGTERM the test stops its workers and its database too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="paceline-soak-") as directory:
        receiver = Receiver(FAILING, arguments.seed)
        verdict = run(
            arguments.incidents, arguments.jobs, arguments.seed, Path(directory), receiver
        )
    print(verdict.line, flush=True)
    sys.exit(0 if verdict.good else 1)


if __name__ == "__main__":
    main()
