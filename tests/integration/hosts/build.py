"""Sessions with readings of hosts, without an analysis."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from app.hosts.models import HostReading
from app.jobs.models import Job
from app.sessions.models.tables import Session, StoredVerdict
from benchmarks.support.stored import made_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.platform.container import Container

HOUR = timedelta(hours=1)
H100 = "NVIDIA H100 80GB HBM3"


def reading(
    slowdown: float = 1.0,
    *,
    lost: float | None = None,
    cause: str | None = "slow_worker",
    gpu: str = "5",
) -> dict[str, Any]:
    """Return the values of a reading; from a slowdown of 1.1 on, a cause names the host."""
    slow = slowdown >= 1.1
    return {
        "ranks": 8,
        "workers": 2,
        "slowdown": slowdown,
        "computing": slowdown,
        "cause": cause if slow else None,
        "lost_each_hour": (10.0 if lost is None else lost) if slow else 0.0,
        "measured_s": 60.0,
        "gpus": [
            {"gpu": "4", "slowdown": 1.0, "computing": 1.0, "slow": False},
            {"gpu": gpu, "slowdown": slowdown, "computing": slowdown, "slow": slow},
        ],
    }


def session(
    container: Container,
    hosts: Mapping[str, float | dict[str, Any]],
    *,
    ago: timedelta,
    job: str = "llm",
) -> uuid.UUID:
    """Store a session of some time ago with the readings, or the slowdowns, of its hosts."""
    with container.uow() as tx:
        owner = tx.session.execute(select(Job).where(Job.name == job)).scalar()
        if owner is None:
            owner = Job(name=job)
            tx.session.add(owner)
            tx.session.flush()
        numbers = select(func.max(Session.number)).where(Session.job_id == owner.id)
        number = tx.session.execute(numbers).scalar() or 0
        made = Session(
            id=uuid.uuid4(),
            job_id=owner.id,
            attempt=1,
            number=number + 1,
            content_sha256=uuid.uuid4().bytes,
            state="analyzed",
            received_at=tx.now - ago,
            meta={},
            dp=2,
            pp=2,
            tp=1,
            cp=1,
            vpp=1,
            world=16,
            trace_format="parquet",
            body_bytes=1,
            operations=1,
            steps=12,
            trace_blob=uuid.uuid4(),
        )
        tx.session.add(made)
        tx.session.flush()
        tx.session.add(StoredVerdict(session_id=made.id, document=made_verdict(1.2)))
        tx.session.add_all(
            HostReading(
                session_id=made.id,
                host=host,
                job_id=owner.id,
                received_at=made.received_at,
                **(what if isinstance(what, dict) else reading(what)),
            )
            for host, what in hosts.items()
        )
        return made.id


def probe_of(*tflops: float, model: str = H100, ago_s: float = 0.0) -> dict[str, Any]:
    """Return a probe of a machine whose GPUs differ in matrix products only."""
    host = uuid.uuid4().hex[:8]
    return {
        "id": str(uuid.uuid4()),
        "at": (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(),
        "torch": "2.11.0",
        "devices": [
            {
                "index": str(number),
                "model": model,
                "uuid": f"GPU-{host}-{number}",
                "measures": {"matmul_tflops": value, "memory_copy_gbs": 2900.0 + number},
            }
            for number, value in enumerate(tflops)
        ],
    }
