"""Soak of the alerts: many flapping incidents, workers that are killed, channels that fail.

The whole path is real: PostgreSQL, the sweeper, the broker, worker processes that are killed with
SIGKILL every few seconds, HTTP to a receiver that fails as receivers do. Only time is made shorter:
the intervals of groups are seconds, and what waits for a later attempt waits a second or two.

Judged is what the receiver heard. A delivery is due unless it is superseded; lost is one that is
due and was not taken, and every incident about which the receiver's belief is wrong in the end.
Prints, last, ``due 1234, delivered 1234, lost 0, out of order 0``, and fails on anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select, text

from app.alerts.facts import FACTS, CauseFact, Facts
from app.alerts.grouping import visible
from app.alerts.rules import CauseFound, Rule
from app.bootstrap import build
from app.db import migrate
from app.db.alert_models import AlertDelivery, AlertFacts, AlertGroup, AlertIncident
from app.db.embedded import EmbeddedPostgres
from app.db.models import Job, Session, WorkerHeartbeat
from app.services.alert_channels import create_channel
from app.services.alert_evaluate import look
from app.services.alert_rules import delete_rule, list_rules, save_rule
from app.services.alert_store import group_of_job, incident_of
from app.services.sweep import sweep
from app.settings import Settings
from benchmarks.soak_receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.services.container import Container

FAILING: Final = 0.3
CHANNELS: Final = ("first", "second", "third")
WORKERS: Final = 3
KILL_EVERY_S: Final = 4.0
CAUSES: Final = 4

# What is waited for at the end, and how long without any progress before it counts as lost.
STALLED_S: Final = 120.0

RULE: Final = Rule(uuid.uuid4(), "Soak", CauseFound(0.9, 0.8), consecutive=1, clear_sessions=1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    due: int
    delivered: int
    lost: int
    out_of_order: int

    @property
    def line(self) -> str:
        """Return the line that is printed last."""
        return (
            f"due {self.due}, delivered {self.delivered}, lost {self.lost}, "
            f"out of order {self.out_of_order}"
        )

    @property
    def good(self) -> bool:
        """Return whether all that was due arrived, in order."""
        return self.due == self.delivered > 0 and self.lost == 0 == self.out_of_order


class Workers:
    """Worker processes of the queue `io`; every few seconds the oldest is killed.

    Only one that takes messages, and only where another one does: on a busy machine a worker needs
    seconds to start, and killing those that have not started would test nothing.
    """

    def __init__(self, container: Container, log: Path) -> None:
        self._container, self._settings, self._log = container, container.settings, log
        self._running: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._torment, name="torment")
        self.killed = 0

    def start(self) -> None:
        """Start them, and their trouble."""
        self._running = [self._start() for _ in range(WORKERS)]
        self._thread.start()

    def stop(self) -> None:
        """End them all."""
        self._stop.set()
        self._thread.join()
        for process in self._running:
            _kill(process)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "workers.child", "--queue", "io"],
                env=os.environ | self._settings.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _torment(self) -> None:
        while not self._stop.wait(KILL_EVERY_S):
            with self._container.uow() as tx:
                ready = set(tx.session.execute(select(WorkerHeartbeat.pid)).scalars())
            victims = [process for process in self._running if process.pid in ready]
            if len(victims) > 1:
                _kill(victims[0])
                self.killed += 1
                self._running.remove(victims[0])
                self._running.append(self._start())


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def background(container: Container) -> Iterator[None]:
    """Sweep, and make waiting shorter, while the context lasts."""
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
    """Let what waits for minutes and hours wait for a second or two."""
    with container.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE alert_delivery SET next_attempt_at = now() + random() * interval '2 s' "
                "WHERE state = 'waiting' AND next_attempt_at > now() + interval '2 s'"
            )
        )
        connection.execute(
            text(
                "UPDATE alert_channel SET hold_until = NULL "
                "WHERE hold_until > now() + interval '1 s'"
            )
        )


def prepare(container: Container, receiver: Receiver, jobs: int) -> list[int]:
    """Make channels, one rule, and jobs; return the jobs."""
    for rule in list_rules(container):
        delete_rule(container, rule.id)
    save_rule(container, RULE, new=True)
    for name in CHANNELS:
        create_channel(container, name=name, kind="webhook", config={"url": receiver.url(name)})
    with container.uow() as tx:
        rows = [Job(name=f"job-{number}") for number in range(jobs)]
        tx.session.add_all(rows)
        tx.session.flush()
        return [row.id for row in rows]


def produce(container: Container, jobs: list[int], incidents: int, seed: int) -> int:
    """Let jobs get slow and fast again until there were so many incidents; return how many."""
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
    return made


def _session(container: Container, job_id: int, number: int, causes: frozenset[int]) -> None:
    """Store what the analysis of a session leaves for alerts, and evaluate it."""
    session_id = uuid.uuid4()
    with container.uow() as tx:
        name = tx.session.execute(select(Job.name).where(Job.id == job_id)).scalar_one()
        tx.session.add(
            Session(
                id=session_id,
                job_id=job_id,
                attempt=1,
                number=number,
                content_sha256=session_id.bytes,
                state="analyzed",
                meta={"labels": {}},
                dp=2,
                pp=2,
                tp=1,
                cp=1,
                vpp=1,
                world=4,
                trace_format="ndjson",
                body_bytes=0,
                operations=0,
                steps=12,
                trace_blob=session_id,
                received_at=tx.now,
            )
        )
        tx.session.flush()
        facts = Facts(
            session=session_id,
            job=name,
            attempt=1,
            number=number,
            received_at=tx.now,
            slowdown=1.0 + 0.1 * len(causes),
            causes=tuple(
                CauseFact("slow_worker", (f"node-{cause}",), confidence=0.95) for cause in causes
            ),
        )
        tx.session.add(
            AlertFacts(
                session_id=session_id,
                job_id=job_id,
                received_at=tx.now,
                document=FACTS.dump_python(facts, mode="json"),
            )
        )
        tx.session.flush()
        look(container, tx, group_of_job(tx, job_id))


def drain(container: Container) -> None:
    """Wait until nothing is to be told and nothing is under way, or nothing moves any more."""
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
        states = dict(sorted((state, count) for state, count in counts))
        if not soon and not states.get("waiting") and not states.get("sending"):
            return
        seen = f"{soon} groups to look after, {states}"
        if seen != last:
            print(f"{time.strftime('%H:%M:%S')}  {seen}", file=sys.stderr)
            last, since_s = seen, time.monotonic()
        elif time.monotonic() - since_s > STALLED_S:
            return
        time.sleep(2.0)


def judge(container: Container, receiver: Receiver) -> Verdict:
    """Compare what was due with what the receiver heard."""
    with container.uow() as tx:
        due = {
            f"msg_{id_.hex}"
            for id_ in tx.session.execute(
                select(AlertDelivery.id).where(AlertDelivery.state != "superseded")
            ).scalars()
        }
        rows = tx.session.execute(
            select(Job.name, AlertIncident)
            .join(AlertGroup, AlertGroup.job_id == Job.id)
            .join(AlertIncident, AlertIncident.group_id == AlertGroup.id)
        ).all()
    going_on: dict[str, set[str]] = {}
    for job, row in rows:
        shown = visible([incident_of(row)])
        going_on.setdefault(job, set()).update(str(incident.id) for incident in shown)
    missing = due - receiver.acknowledged
    wrong = 0
    for name in CHANNELS:
        for job, wanted in going_on.items():
            heard = receiver.heard.get((f"/{name}", job))
            believed = set(heard.firing) if heard else set()
            if believed != wanted:
                wrong += len(believed ^ wanted)
                print(
                    f"{name}, {job}: {len(wanted - believed)} not known, "
                    f"{len(believed - wanted)} believed although over",
                    file=sys.stderr,
                )
    if receiver.changed:
        print(f"{receiver.changed} repeated with another content", file=sys.stderr)
    return Verdict(
        due=len(due),
        delivered=len(due & receiver.acknowledged),
        lost=len(missing) + wrong + receiver.changed,
        out_of_order=receiver.out_of_order,
    )


def run(incidents: int, jobs: int, seed: int, directory: Path) -> bool:
    """Do all of it, and return whether it is good."""
    directory.chmod(0o711)  # the database's account passes through it
    with (
        EmbeddedPostgres(directory / "data", durable=False) as postgres,
        Receiver(FAILING, seed) as receiver,
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
        container = build(settings)
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
        verdict = judge(container, receiver)
        with container.uow() as tx:
            superseded = tx.session.execute(
                select(func.count()).where(AlertDelivery.state == "superseded")
            ).scalar_one()
        print(
            f"{made} incidents over {jobs} jobs in {produced_s:.0f} s, {total_s:.0f} s in all; "
            f"{receiver.requests} requests, {FAILING:.0%} of them failed, {receiver.repeated} came "
            f"again under their id, {workers.killed} workers killed, {superseded} superseded"
        )
        print(verdict.line, flush=True)
        return verdict.good


def main() -> None:
    """Run the soak; exit status 1 if anything was lost or came out of order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    # Ended from outside, it ends its workers and its database too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="paceline-soak-") as directory:
        good = run(arguments.incidents, arguments.jobs, arguments.seed, Path(directory))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
