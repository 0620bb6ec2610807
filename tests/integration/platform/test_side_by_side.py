"""Servers and workers of two versions share an installation: during an update and after a rollback.

Version 0.2.0 comes from git's history, the next version is a copy of the present one that writes
the next generation of stored formats. Every pair of a server and a worker gets a session in one
body, one that is packed, one in chunks, a pulse, an archive of a hang and an action on a machine.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import pytest
from sqlalchemy import func, select

from app.actions.models import ActionMode
from app.analysis.generation import READS
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.pulse_job import PulseDials
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_arrow, to_parquet
from app.analysis.trace.model import Sizes, Trace
from app.hangs.models import HangUpload, StoredHang
from app.jobs.models import Job
from app.platform.database.engine import make_engine
from app.platform.database.migrate import current_revision, expected_revision
from app.platform.database.task_runs import ACT_ON_MACHINE, TaskRun
from app.platform.settings import Settings
from app.pulse.models import PulseState
from app.sessions.models.tables import InboxItem, Intake, Session, StoredReport
from tests.integration.api.chunks import by_rank_and_flush
from tests.support.acting import Acting
from tests.support.alerting import LOOPBACK
from tests.support.hanging import large_archive
from tests.support.project import build
from tests.support.pulses.live import LiveJob
from tests.support.receiver import Receiver
from tests.support.served import client_of
from tests.support.versions import ROOT, Server, Version, next_tree, released_tree
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.redis import RedisServer

SIZES = {"dp": 2, "pp": 2, "world": 4}
LIMIT_S = 240.0
_seeds = itertools.count(1)


def trace() -> Trace:
    """Return a session of its own; worker (1, 1) is slow."""
    job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
    return synthesize(job, [SlowWorker((1, 1), 1.8)], seed=next(_seeds)).trace


@dataclass
class Traffic:
    """What the jobs have sent, and what must come of it."""

    acting: Acting
    receiver: Receiver
    sessions: dict[str, int] = field(default_factory=dict)
    pulse_rows: dict[str, int] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)

    def send(self, server: Server, job: str) -> None:
        """Send one of each kind to a server, and let a person allow an action there."""
        with client_of(f"{server.url}/api/v1") as client:
            for body in (to_parquet(trace()), to_arrow(trace())):
                self.whole(client, job, body)
            path = f"/jobs/{job}/attempts/1/sessions/50"
            for producer, number, part in by_rank_and_flush(trace(), 2):
                _ok(
                    client.put(
                        f"{path}/chunks/{producer}/{number}",
                        content=to_parquet(part),
                        params=SIZES,
                    )
                )
            _ok(client.post(f"{path}/seal"))
            self.sessions[job] += 1
            self.pulse(client, job)
            _ok(client.post(f"/jobs/{job}/hangs", content=large_archive()))
            self.hangs.add(job)

    def whole(self, client: httpx.Client, job: str, body: bytes) -> None:
        """Send a session in one body."""
        _ok(client.post(f"/jobs/{job}/sessions", content=body, params=SIZES))
        self.sessions[job] = self.sessions.get(job, 0) + 1

    def pulse(self, client: httpx.Client, job: str) -> None:
        """Send the pulse of a few steps."""
        live = LiveJob(PulseDials(dp=8, pp=2, steps=100, step_s=0.01))
        for _ in range(4):
            for body in live.bodies():
                _ok(client.post(f"/jobs/{job}/attempts/1/pulse", content=body))
        self.pulse_rows[job] = live.step * 16

    def act(self, server: Server, host: str) -> None:
        """Blame a machine; once a sweeper asks a person, let one allow the action on a server."""
        self.acting.blame(host, job=f"of-{host}")
        self.hosts.add(host)
        with client_of(f"{server.url}/api/v1") as client:

            def asked() -> list[dict[str, str]]:
                answer = client.get("/actions", params={"state": "asked", "host": host})
                found: list[dict[str, str]] = answer.json()["actions"]
                return found

            [action] = wait_for(asked, f"action on {host}", limit_s=LIMIT_S)
            _ok(client.post(f"/actions/{action['id']}/allow"))

    def wait(self, *jobs: str) -> None:
        """Wait until everything of these jobs, or of all jobs, came to its end; check that end."""
        wait_for(lambda: not self.open(jobs), f"end of all work of {jobs}", limit_s=LIMIT_S)
        self.check()

    def open(self, jobs: tuple[str, ...] = ()) -> dict[str, int]:
        """Return the numbers of sessions, bodies and tasks that are not at their end, by job."""
        with self.acting.container.reading() as tx:
            by_job = [
                select(Job.name, func.count())
                .join(Session, Session.job_id == Job.id)
                .where(Session.state.in_(("open", "queued", "analyzing")))
                .group_by(Job.name),
                select(Job.name, func.count())
                .outerjoin(Session, Session.job_id == Job.id)
                .join(
                    InboxItem,
                    (InboxItem.job_id == Job.id) | (InboxItem.session_id == Session.id),
                )
                .group_by(Job.name),
                select(Job.name, func.count())
                .join(HangUpload, HangUpload.job_id == Job.id)
                .where(HangUpload.state.in_(("queued", "reading")))
                .group_by(Job.name),
            ]
            found: dict[str, int] = {}
            for query in by_job:
                for name, count in tx.session.execute(query):
                    found[name] = found.get(name, 0) + count
            acting = tx.session.execute(
                select(func.count()).where(
                    TaskRun.kind == ACT_ON_MACHINE, TaskRun.state.in_(("queued", "running"))
                )
            ).scalar_one()
        if acting:
            found["actions"] = acting
        return {job: count for job, count in found.items() if not jobs or job in jobs}

    def check(self) -> None:
        """Check that nothing that ended failed, was lost, doubled or tried twice."""
        with self.acting.container.reading() as tx:
            states = tx.session.execute(
                select(Job.name, Session.state, Session.reason_code, Session.reason)
                .join(Job, Job.id == Session.job_id)
                .where(Job.name.in_(self.sessions), Session.state.not_in(("open", "queued")))
            ).all()
            assert {row for row in states if row.state not in {"analyzed", "analyzing"}} == set()
            refused = tx.session.execute(select(func.sum(Intake.refused_chunks))).scalar_one()
            dead = tx.session.execute(
                select(TaskRun.kind, TaskRun.error_code, TaskRun.error).where(
                    (TaskRun.state == "dead") | (TaskRun.attempt > 1)
                )
            ).all()
        assert (refused or 0, dead) == (0, [])

    def check_all(self) -> None:
        """Wait for the end of everything, and compare it with what was sent."""
        self.wait()
        with self.acting.container.reading() as tx:
            sessions = tx.session.execute(
                select(Job.name, func.count(Session.id), func.count(StoredReport.session_id))
                .join(Session, Session.job_id == Job.id)
                .outerjoin(StoredReport, StoredReport.session_id == Session.id)
                .where(Job.name.in_(self.sessions))
                .group_by(Job.name)
            ).all()
            pulses = tx.session.execute(
                select(Job.name, PulseState.rows, PulseState.counts).join(
                    Job, Job.id == PulseState.job_id
                )
            ).all()
            hangs = tx.session.execute(
                select(Job.name, HangUpload.state, func.count(StoredHang.id))
                .join(HangUpload, HangUpload.job_id == Job.id)
                .join(StoredHang, StoredHang.job_id == Job.id)
                .group_by(Job.name, HangUpload.state)
            ).all()
        sent = {(job, count, count) for job, count in self.sessions.items()}
        assert {tuple(row) for row in sessions} == sent
        assert {(name, rows) for name, rows, _ in pulses} == set(self.pulse_rows.items())
        assert [counts for _, _, counts in pulses if counts] == []
        assert {tuple(row) for row in hangs} == {(job, "read", 1) for job in self.hangs}
        assert self.acting.states() == {host: ["done"] for host in self.hosts}
        assert len(self.receiver.got) == len(self.hosts)


def _ok(answer: httpx.Response) -> None:
    assert answer.is_success, answer.text


@contextlib.contextmanager
def writing(traffic: Traffic, servers: list[Server]) -> Iterator[None]:
    """Send sessions in one body to all servers in turn, until the end of the context."""
    done, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            for number in itertools.count():
                if done.wait(2.0):
                    return
                server = servers[number % len(servers)]
                with client_of(f"{server.url}/api/v1") as client:
                    traffic.whole(client, "writer", to_arrow(trace()))
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert failures == []


@pytest.mark.slow
def test_versions_side_by_side(  # noqa: PLR0915 - one installation
    empty_database_url: str, redis_server: RedisServer, open_dir: Path
) -> None:
    settings = {
        "PACELINE_DATABASE_URL": empty_database_url,
        "PACELINE_BROKER_URL": redis_server.url,
        "PACELINE_DATA_DIR": str(open_dir / "data"),
        "PACELINE_ALERT_ALLOWED_NETWORKS": ",".join(LOOPBACK),
        "PACELINE_SWEEP_INTERVAL_S": "0.5",
        "PACELINE_REPUBLISH_AFTER_S": "3",
        "PACELINE_MAX_ATTEMPTS": "2",
    }

    def version(name: str, tree: Path) -> Version:
        return Version(name, tree, settings, open_dir / f"{name}.log")

    old = version("0.2.0", released_tree(open_dir / "0.2.0"))
    present = version("present", ROOT)
    later = version("next", next_tree(open_dir / "next"))
    container = build(
        Settings(
            database_url=empty_database_url,
            broker_url=redis_server.url,
            data_dir=open_dir / "data",
            alert_allowed_networks=LOOPBACK,
        )
    )
    engine = make_engine(empty_database_url)
    with contextlib.ExitStack() as running:
        running.callback(engine.dispose)
        running.callback(container.close)
        receiver = running.enter_context(Receiver())
        traffic = Traffic(Acting(container), receiver)

        # 0.2.0 runs, and the present version migrates the schema below it.
        assert old.run("migrate").returncode == 0
        assert current_revision(engine) == "0001"
        old_worker = running.enter_context(old.worker())
        old_server = running.enter_context(old.server())
        old_server.wait_until_it_answers()
        servers = [old_server]
        with writing(traffic, servers):
            migrated = present.run("migrate")
            assert migrated.returncode == 0, migrated.stderr
            assert current_revision(engine) == expected_revision()
            traffic.acting.events(receiver, ActionMode.ASK)
            server = running.enter_context(present.server())
            server.wait_until_it_answers()
            servers.append(server)

            # Both servers with the old worker, then with the present one.
            for name, each in (("old-old", old_server), ("new-old", server)):
                traffic.send(each, name)
                traffic.act(each, name)
            traffic.wait("old-old", "new-old", "actions")
            worker = running.enter_context(present.worker())
            old_worker.stop()
            for name, each in (("old-new", old_server), ("new-new", server)):
                traffic.send(each, name)
                traffic.act(each, name)
            traffic.wait("old-new", "new-new", "actions")

            # The next version writes what neither of the workers can read: they leave it to a
            # worker of the next version, and continue with the rest.
            old_worker = running.enter_context(old.worker())
            later_server = running.enter_context(later.server())
            later_server.wait_until_it_answers()
            traffic.send(later_server, "next")
            traffic.send(old_server, "rest-old")
            traffic.send(server, "rest-new")
            traffic.wait("rest-old", "rest-new")
            with container.reading() as tx:
                waiting = tx.session.execute(
                    select(TaskRun.kind, TaskRun.needs, TaskRun.attempt)
                    .where(TaskRun.state == "queued", TaskRun.needs > READS)
                    .order_by(TaskRun.kind)
                ).all()
                bodies = set(tx.session.execute(select(InboxItem.kind, InboxItem.needs)).all())
            analysis, reading = ("analyze_session", READS + 1, 0), ("read_hang", READS + 1, 0)
            assert [tuple(row) for row in waiting] == [analysis] * 3 + [reading]
            assert {tuple(row) for row in bodies} == {("chunk", READS + 1), ("pulse", READS + 1)}
            newer = httpx.get(f"{server.url}/metrics", trust_env=False).text
            assert "paceline_newer_tasks 4.0" in newer

            # Workers of all three versions: what the next one stores, the others do not claim.
            later_worker = running.enter_context(later.worker())
            traffic.wait("next")
            for name, each in (
                ("all-old", old_server),
                ("all-new", server),
                ("all-next", later_server),
            ):
                traffic.send(each, name)
                traffic.act(each, name)
        traffic.check_all()

        # A rollback: no migration runs, and 0.2.0 starts on the later schema, as its last worker
        # did.
        for process in (later_server, later_worker, server, worker, old_server):
            process.stop()
        old_server = running.enter_context(old.server())
        old_server.wait_until_it_answers()
        assert current_revision(engine) == expected_revision()
        traffic.send(old_server, "back")
        traffic.act(old_server, "back")
        traffic.check_all()
