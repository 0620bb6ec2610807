"""Use case: a job's kept pulse as a Parquet file, made while it is sent."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import select

from app.analysis.pulse.columns import BEAT_COLUMNS, KEYS, MEASURES
from app.analysis.pulse.kept.blocks import from_block, in_order
from app.analysis.pulse.parquet import columns_of
from app.db.models.noticed import PulseBlock
from app.db.models.sessions import Job
from app.services.access.audit import Action, record
from app.services.sessions.receive import no_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from app.services.container import Container

SCHEMA: Final = pa.schema(
    [
        *((name, pa.int64()) for name in (*KEYS, *MEASURES)),
        *((name, pa.string() if name == "phase" else pa.int64()) for name in BEAT_COLUMNS),
    ]
)


def export_pulse(container: Container, job: str, attempt: int | None = None) -> Iterator[bytes]:
    """Return what is kept of a job's pulse, step by step, piece by piece.

    A minute is in memory at a time, read in a transaction of its own: one that goes meanwhile is
    left out.

    Parameters
    ----------
    attempt : int, optional
        Of one attempt; without it, of all.

    Raises
    ------
    NotFoundError
        Before the first piece, if there is no such job.
    """
    with container.uow() as tx:
        job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar()
        if job_id is None:
            raise no_job(job)
        query = (
            select(PulseBlock.attempt, PulseBlock.minute)
            .where(PulseBlock.job_id == job_id)
            .distinct()
            .order_by(PulseBlock.attempt, PulseBlock.minute)
        )
        if attempt is not None:
            query = query.where(PulseBlock.attempt == attempt)
        minutes = [(row.attempt, row.minute) for row in tx.session.execute(query)]
        record(tx, container.principal, Action.EXPORTED, f"pulse of job {job}")
    return _pieces(container, job_id, minutes)


def _pieces(
    container: Container, job_id: int, minutes: Sequence[tuple[int, datetime]]
) -> Iterator[bytes]:
    written = _Written()
    with pq.ParquetWriter(pa.PythonFile(written, mode="w"), SCHEMA, compression="zstd") as file:
        for attempt, minute in minutes:
            with container.reading() as tx:
                bodies = tx.session.execute(
                    select(PulseBlock.body)
                    .where(
                        PulseBlock.job_id == job_id,
                        PulseBlock.attempt == attempt,
                        PulseBlock.minute == minute,
                    )
                    .order_by(PulseBlock.part)
                ).scalars()
                parts = [from_block(body) for body in bodies]
            if parts:
                file.write_table(pa.table(dict(columns_of(in_order(parts))), schema=SCHEMA))
                yield written.take()
    yield written.take()


class _Written(io.RawIOBase):
    """What was written and not sent yet; a file that is never read."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Keep bytes until they are taken."""
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> bytes:
        """Return what was written since it was taken last."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
