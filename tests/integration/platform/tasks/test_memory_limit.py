"""Analyses and chunks that exceed the memory limit fail with the needed memory."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import func, select

from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes
from app.analysis.trace.readers.ndjson import SCHEMA
from app.platform import killable
from app.sessions.body import Body
from app.sessions.chunks.absorb import absorb
from app.sessions.chunks.inbox import ChunkPath, refused_chunks
from app.sessions.chunks.receive import receive_chunk
from app.sessions.models.tables import InboxItem, Session
from tests import factories
from tests.support.sessions import count_reports, session_row, small_trace, store, task_row

if TYPE_CHECKING:
    from app.analysis.trace.model import Trace
    from app.platform.container import Container
    from tests.support.sessions import Stored

# A worker's program; the second argument is its memory in MiB.
_WORK = """
import sys
from app.analysis.warm_up import warm_up
from app.platform.settings import Settings
from tests.support.project import build
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from uuid import UUID
limit_kib = int(sys.argv[2]) * 1024
container = build(Settings().model_copy(update={"analysis_memory_limit_kib": limit_kib}))
warm_up()
execute(container, LeaseKeeper(container), UUID(sys.argv[1]))
"""


def work(container: Container, stored: Stored, mib: int) -> None:
    """Run the analysis in a worker with limited memory."""
    subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", _WORK, str(stored.run), str(mib)],
        env=container.settings.environment_of_child(os.environ),
        check=True,
    )


def test_an_analysis_over_the_limit_is_tried_again_and_then_says_what_it_needs(
    container: Container,
) -> None:
    job = JobModel(Sizes(dp=32, pp=8), microbatches=24, steps=12)
    stored = store(container, synthesize(job, seed=1).trace)
    work(container, stored, 10)
    assert session_row(container, stored).state == "queued"
    work(container, stored, 10)
    row = session_row(container, stored)
    assert (row.state, row.reason_code) == ("failed", "task.memory_limit")
    said = re.search(
        r"it needs about (\d+) GiB: set PACELINE_ANALYSIS_MEMORY_LIMIT_KIB to (\d+)",
        str(row.reason),
    )
    assert said is not None
    assert int(said[2]) == int(said[1]) << 20
    assert task_row(container, stored).attempt == 2
    assert count_reports(container) == 0


def test_a_worker_with_more_memory_takes_over(container: Container) -> None:
    job = JobModel(Sizes(dp=32, pp=8), microbatches=24, steps=12)
    stored = store(container, synthesize(job, seed=1).trace)
    work(container, stored, 10)
    work(container, stored, 4096)
    assert session_row(container, stored).state == "analyzed"


_ABSORB = """
import sys
from app.sessions.chunks.absorb import absorb
from app.platform.settings import Settings
from tests.support.project import build
limit_kib = int(sys.argv[1]) * 1024
container = build(Settings().model_copy(update={"inbox_memory_limit_kib": limit_kib}))
while absorb(container):
    pass
"""
_INFLATING_LINES = 600_000


def inflating(trace: Trace) -> bytes:
    """Return a body of a few MB that contains the operations of a day."""
    header = json.dumps({"schema": SCHEMA, "meta": metadata_document(trace.meta)})
    place = f'"rank":{trace.rank[0]},"dp":{trace.dp[0]},"pp":{trace.pp[0]}'
    lines = (
        f'{{{place},"step":{step},"op":"optimizer","start_ns":{step * 1000},"dur_ns":7}}'
        for step in range(100, 100 + _INFLATING_LINES)
    )
    return gzip.compress("\n".join([header, *lines, ""]).encode())


def take(container: Container, trace: Trace, producer: str, number: int, content: bytes) -> None:
    """Send a chunk to a server."""
    body = Body(content, len(content), hashlib.sha256(content).digest(), None, trace.meta)
    receive_chunk(container, ChunkPath("llm", 1, 1, producer, number), body, final=False)


def absorb_with(container: Container, mib: int) -> None:
    """Process the inbox in a worker with limited memory."""
    subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", _ABSORB, str(mib)],
        env=container.settings.environment_of_child(os.environ),
        check=True,
    )


def test_a_chunk_that_inflates_is_refused_by_name_and_the_worker_goes_on(
    container: Container,
) -> None:
    trace = small_trace()
    ranks = np.unique(trace.rank).tolist()
    for rank in ranks[:-1]:
        take(container, trace, f"rank-{rank}", 0, to_parquet(select_rows(trace, rank)))
    take(container, trace, "stray", 0, inflating(trace))
    take(container, trace, f"rank-{ranks[-1]}", 0, to_parquet(select_rows(trace, ranks[-1])))
    absorb_with(container, 16)
    with container.uow() as tx:
        session = tx.session.execute(select(Session)).scalar_one()
        (refused,) = refused_chunks(tx, session.id)
        waiting = tx.session.execute(
            select(func.count(InboxItem.id)).where(InboxItem.code.is_(None))
        ).scalar_one()
    assert (refused.producer, refused.number) == ("stray", 0)
    assert refused.code == "chunk.memory_limit"
    assert "PACELINE_INBOX_MEMORY_LIMIT_KIB to 32768" in refused.reason
    assert waiting == 0
    assert session.operations == len(trace)


def test_the_same_chunk_is_taken_by_a_worker_with_more_memory(container: Container) -> None:
    trace = small_trace()
    take(container, trace, "rank-0", 0, to_parquet(select_rows(trace, 0)))
    take(container, trace, "stray", 0, inflating(trace))
    absorb_with(container, 2048)
    with container.uow() as tx:
        session = tx.session.execute(select(Session)).scalar_one()
        assert not refused_chunks(tx, session.id)
    assert session.operations > _INFLATING_LINES


def test_a_chunk_that_takes_too_long_is_refused_by_name_after_two_tries(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killable, "BASE_CPU_S", 0.1)
    monkeypatch.setattr(killable, "CPU_S_PER_MIB", 0.0)
    trace = small_trace()
    ranks = np.unique(trace.rank).tolist()
    take(container, trace, f"rank-{ranks[0]}", 0, to_parquet(select_rows(trace, ranks[0])))
    take(container, trace, "stray", 0, inflating(trace))
    take(container, trace, f"rank-{ranks[-1]}", 0, to_parquet(select_rows(trace, ranks[-1])))
    while absorb(container):
        pass
    with container.uow() as tx:
        session = tx.session.execute(select(Session)).scalar_one()
        (refused,) = refused_chunks(tx, session.id)
        tries = tx.session.execute(select(InboxItem.tries)).scalar_one()
    assert (refused.producer, refused.code, tries) == ("stray", "body.time_limit", 2)
    assert refused.reason.startswith("stray: Reading the body took over")
    expected = [trace.rank == ranks[0], trace.rank == ranks[-1]]
    assert session.operations == int(sum(rows.sum() for rows in expected))


def select_rows(trace: Trace, rank: int) -> Trace:
    """Return the operations of one rank."""
    return factories.select(trace, trace.rank == rank)
