"""A ledger of sent and acknowledged bodies, compared with the database at the end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httpx
from sqlalchemy import func, select

from app.jobs.models import Job
from app.platform.database.task_runs import ANALYZE_SESSION, TaskRun
from app.sessions.models.tables import Chunk, Intake, Session, StoredReport
from tests.integration.api import bodies, chunks

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from tests.chaos.installation import Installed

WHOLE: Final = "whole"
IN_CHUNKS: Final = "chunks"
SEND_LIMIT_S: Final = 600.0
# Seconds without progress at the end after which a session that is not analyzed counts as stuck.
STALLED_S: Final = 180.0
# Percentage of chunks whose connection is first cut in the middle.
CUT_PERCENT: Final = 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of all acknowledged bodies; `sent` and `stored` count bodies."""

    sent: int
    stored: int
    lost: int
    doubled: int
    stuck: int

    def holds(self) -> bool:
        """Return whether all acknowledged bodies are stored once, and analyzed."""
        return self.sent == self.stored and not (self.lost or self.doubled or self.stuck)


@dataclass(slots=True)
class Ledger:
    """Acknowledged bodies: whole sessions by id, chunks by path."""

    whole: set[str] = field(default_factory=set)
    chunks: set[tuple[int, str, int]] = field(default_factory=set)

    def send_whole(self, installed: Installed, cycle: int) -> None:
        """Send a session in one body until it is acknowledged."""
        answer = _persist(
            installed,
            "POST",
            f"/api/v1/jobs/{WHOLE}/sessions",
            bodies.parquet(),
            bodies.SIZES | {"run_id": str(cycle)},
        )
        self.whole.add(answer["session"])

    def send_in_chunks(self, installed: Installed, cycle: int, draw: random.Random) -> None:
        """Send a session as a job does: all ranks send their chunks at the same time."""
        pieces: dict[str, list[bytes]] = {}
        for producer, _, body in chunks.parquet_pieces(bodies.trace()):
            pieces.setdefault(producer, []).append(body)
        cut = {
            (producer, number)
            for producer, sent in pieces.items()
            for number in range(len(sent))
            if draw.randrange(100) < CUT_PERCENT
        }

        def send(producer: str) -> None:
            for number, body in enumerate(pieces[producer]):
                path = chunks.url(cycle, producer, number, IN_CHUNKS)
                if (producer, number) in cut:
                    _cut_off(installed, path, body)
                final = number == len(pieces[producer]) - 1
                params = bodies.SIZES | {"final": str(final).lower()}
                _persist(installed, "PUT", path, body, params)
                self.chunks.add((cycle, producer, number))

        ranks = [threading.Thread(target=send, args=(producer,)) for producer in pieces]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()

    def compared(self, installed: Installed) -> Verdict:
        """Wait until all work has ended, and compare."""
        stuck = _wait_for_reports(installed)
        operations = len(bodies.trace())
        with installed.container.reading() as tx:
            rows = tx.session.execute(
                select(Session.id, Session.number, Session.operations, Job.name).join(Job)
            ).all()
            stored = set(
                map(
                    tuple,
                    tx.session.execute(
                        select(Session.number, Chunk.producer, Chunk.number)
                        .select_from(Chunk)
                        .join(Intake, Intake.session_id == Chunk.session_id)
                        .join(Session, Session.id == Chunk.session_id)
                    ).all(),
                )
            )
            runs = tx.session.execute(
                select(func.count())
                .where(TaskRun.kind == ANALYZE_SESSION)
                .group_by(TaskRun.subject_id)
            ).scalars()
            twice = sum(count > 1 for count in runs)
        whole = {str(row.id) for row in rows if row.name == WHOLE}
        return Verdict(
            sent=len(self.whole) + len(self.chunks),
            stored=len(whole) + len(stored),
            lost=len(self.whole - whole) + len(self.chunks - stored),
            doubled=len(whole - self.whole)
            + len(stored - self.chunks)
            + sum(row.operations != operations for row in rows)
            + twice,
            stuck=stuck,
        )


def _wait_for_reports(installed: Installed) -> int:
    """Wait until every session has its report; return the number of sessions that get none."""
    before, since_s = None, time.monotonic()
    while True:
        with installed.container.reading() as tx:
            waiting = tx.session.execute(
                select(func.count())
                .select_from(Session)
                .outerjoin(StoredReport, StoredReport.session_id == Session.id)
                .where((Session.state != "analyzed") | StoredReport.session_id.is_(None))
            ).scalar_one()
        if waiting != before:
            before, since_s = waiting, time.monotonic()
        if not waiting or time.monotonic() - since_s > STALLED_S:
            return waiting
        time.sleep(0.5)


def _persist(
    installed: Installed, method: str, path: str, body: bytes, params: Mapping[str, int | str]
) -> dict[str, str]:
    """Send a body until it is accepted, like the client, and return the answer."""
    until_s = time.monotonic() + SEND_LIMIT_S
    said = "nothing"
    while time.monotonic() < until_s:
        try:
            answer = httpx.request(
                method,
                f"{installed.url}{path}",
                params=params,
                content=body,
                timeout=10,
                trust_env=False,
            )
        except httpx.HTTPError as error:
            said = repr(error)
        else:
            if answer.status_code in {200, 202}:
                found: dict[str, str] = answer.json()
                return found
            said = answer.text
            if answer.status_code not in {429, 500, 502, 503}:
                break
        time.sleep(0.2)
    raise RuntimeError(f"{path} was not taken: {said}")


def _cut_off(installed: Installed, path: str, body: bytes) -> None:
    """Send half of a body and close the connection."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", installed.port), timeout=5) as line,
    ):
        head = f"PUT {path}?dp=3&pp=2&world=6 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        line.sendall(body[: len(body) // 2])
