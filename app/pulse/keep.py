"""Storage of pulses: blocks of rows, sums by minute and hour, pruning, and Parquet export.

Only the holder of an attempt's claim writes, in the transaction that stores the state of detection:
no row is lost or stored twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.access.audit import Action, record
from app.analysis.pulse.columns import (
    BEAT_COLUMNS,
    KEYS,
    MEASURES,
    NO_BEAT,
    Pulses,
    Steps,
    joined,
)
from app.analysis.pulse.medians import median_of_rows
from app.analysis.pulse.packing import from_block, in_order, rows_of, to_block
from app.analysis.pulse.parquet import columns_of
from app.analysis.pulse.rollups import Sums, from_bytes, to_bytes
from app.analysis.quantities import IntArray
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import UnitOfWork
from app.pulse.models import PulseBlock, PulseSpan, PulseState, RecordingRequest
from app.sessions.receive import no_job

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


MINUTE: Final = 60
HOUR: Final = 3_600
SPANS: Final = (MINUTE, HOUR)
# The last block of a minute is rewritten with further rows while it is smaller than this.
GROWS_BYTES: Final = 1 << 16
# Number of slowest ranks that are stored for each span.
NAMED: Final = 5
# If the newest step's median end over the ranks differs from the server's time by more than this,
# all clocks are taken to be wrong.
_WRONG_NS: Final = 600_000_000_000
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class StoredBatch:
    """Rows of a batch by minute, and its sums by length and start of the span (both seconds)."""

    rows: Mapping[int, Pulses]
    sums: Mapping[tuple[int, int], Sums]

    @property
    def lost_gpu_s(self) -> float:
        """Return the GPU-seconds that were lost in the steps of the batch."""
        minutes = (sums for (seconds, _), sums in self.sums.items() if seconds == MINUTE)
        return sum(sums.lost_ns for sums in minutes) / _SECOND_NS


def stored_batch(
    steps: tuple[Steps, ...], batch: Pulses | None, received_at: datetime | None
) -> StoredBatch:
    """Return the rows and sums of a batch that are to be stored.

    A step belongs to the minute in which its median rank ended it, so that a single wrong clock
    changes nothing. If all clocks are wrong, the last step counts as ended when it was received.

    Parameters
    ----------
    steps : tuple of Steps
        Steps that the batch completed.
    batch : Pulses or None
        All rows of the batch in the order of time; only beats are taken from it.
    received_at : datetime or None
        When the last body was received.
    """
    rows: dict[int, list[Pulses]] = {}
    sums: dict[tuple[int, int], Sums] = {}
    received_ns = None if received_at is None else int(received_at.timestamp() * _SECOND_NS)
    ends = [_median_ends_ns(whole) for whole in steps]
    last_ns = max((int(ended_ns.max()) for ended_ns in ends), default=received_ns)
    shift_ns = 0
    if last_ns is not None and received_ns is not None and abs(received_ns - last_ns) > _WRONG_NS:
        shift_ns = received_ns - last_ns
    for whole, ended_ns in zip(steps, ends, strict=True):
        minutes, firsts = np.unique(
            (ended_ns + shift_ns) // (MINUTE * _SECOND_NS) * MINUTE, return_index=True
        )
        edges = [*firsts.tolist(), len(ended_ns)]
        for minute, (first, end) in zip(minutes.tolist(), pairwise(edges), strict=True):
            which = slice(first, end)
            rows.setdefault(minute, []).append(rows_of(whole, which))
            own = Sums.of(whole, which)
            for seconds in SPANS:
                key = seconds, minute // seconds * seconds
                sums[key] = sums[key].plus(own) if key in sums else own
    if batch is not None:
        beats = batch.take(batch.phase != NO_BEAT)
        # Beats only show the current state, so that those of a batch with whole steps are stored in
        # its last minute.
        if len(beats):
            beats_ns = int(np.median(beats.time_ns)) if received_ns is None else received_ns
            minute = max(rows, default=beats_ns // (MINUTE * _SECOND_NS) * MINUTE)
            rows.setdefault(minute, []).append(beats)
    return StoredBatch({minute: joined(parts) for minute, parts in rows.items()}, sums)


def write_batch(
    tx: UnitOfWork, job_id: int, attempt: int, batch: StoredBatch, hosts: Mapping[int, str]
) -> None:
    """Add a batch to an attempt's blocks and sums; the transaction must hold the claim.

    Parameters
    ----------
    hosts : mapping of int to str
        Known host names by rank.
    """
    for minute, rows in batch.rows.items():
        _append_block(tx, job_id, attempt, datetime.fromtimestamp(minute, UTC), rows)
    for (seconds, start), sums in batch.sums.items():
        begin = datetime.fromtimestamp(start, UTC)
        key = {"job_id": job_id, "attempt": attempt, "seconds": seconds, "start": begin}
        _add_to_span(tx, key, sums, hosts)


def _append_block(
    tx: UnitOfWork, job_id: int, attempt: int, minute: datetime, rows: Pulses
) -> None:
    last = tx.session.execute(
        select(PulseBlock.id, PulseBlock.part, func.octet_length(PulseBlock.body).label("size"))
        .where(
            PulseBlock.job_id == job_id,
            PulseBlock.attempt == attempt,
            PulseBlock.minute == minute,
        )
        .order_by(PulseBlock.part.desc())
        .limit(1)
    ).one_or_none()
    if last is not None and last.size < GROWS_BYTES:
        body = tx.session.execute(
            select(PulseBlock.body).where(PulseBlock.id == last.id)
        ).scalar_one()
        both = joined([from_block(body), rows])
        tx.session.execute(
            update(PulseBlock)
            .where(PulseBlock.id == last.id)
            .values(rows=len(both), body=to_block(both))
        )
        return
    tx.session.execute(
        insert(PulseBlock).values(
            job_id=job_id,
            attempt=attempt,
            minute=minute,
            part=0 if last is None else last.part + 1,
            rows=len(rows),
            body=to_block(rows),
        )
    )


def _add_to_span(
    tx: UnitOfWork, key: Mapping[str, object], sums: Sums, hosts: Mapping[int, str]
) -> None:
    before = tx.session.execute(select(PulseSpan.sums).filter_by(**key)).scalar()
    both = sums if before is None else from_bytes(before).plus(sums)
    slowest = both.slowest(NAMED)
    values = {
        "ranks": len(both.ranks),
        "steps": both.steps,
        "busy_s": both.step_ns / _SECOND_NS,
        "step_median_s": both.median_ns / _SECOND_NS,
        "step_p95_s": both.high_ns / _SECOND_NS,
        "step_worst_s": both.worst_ns / _SECOND_NS,
        "compute_median_s": both.compute_median_ns / _SECOND_NS,
        "compute_p95_s": both.compute_high_ns / _SECOND_NS,
        "tokens": both.tokens,
        "lost_gpu_s": both.lost_ns / _SECOND_NS,
        "worst_ranks": [rank for rank, _ in slowest],
        "worst_ratios": [ratio for _, ratio in slowest],
        "worst_hosts": [hosts.get(rank, "") for rank, _ in slowest],
        "worst_gpus": [_gpu_index(rank, hosts) for rank, _ in slowest],
        "sums": to_bytes(both),
    }
    tx.session.execute(
        insert(PulseSpan)
        .values(**key, **values)
        .on_conflict_do_update(
            index_elements=["job_id", "seconds", "start", "attempt"], set_=values
        )
    )


def _gpu_index(rank: int, hosts: Mapping[int, str]) -> int:
    """Return a rank's index among the ranks of its host, which usually is the index of its GPU."""
    host = hosts.get(rank)
    if host is None:
        return 0
    return sum(1 for other, name in hosts.items() if name == host and other < rank)


def _median_ends_ns(steps: Steps) -> IntArray:
    """Return the median end of each step, nanoseconds since the epoch, never falling."""
    first_ns = int(steps.ended_ns[0].max())
    there = ~np.isnan(steps.measures["step_ns"])
    since_ns = median_of_rows(np.where(there, steps.ended_ns - first_ns, np.nan))
    return np.maximum.accumulate(first_ns + since_ns.astype(np.int64))


# The state of an attempt that sent nothing for this long is dropped; counts and notices are kept.
SILENT: Final = timedelta(days=7)
# The state of an attempt is dropped earlier if a later attempt has begun, because late bodies
# arrive within seconds.
FOLLOWED: Final = timedelta(hours=1)
# Requests are kept as long as spans of minutes are by default.
REQUESTS_KEPT: Final = timedelta(days=90)
_AT_ONCE: Final = 256


def prune_pulses(tx: UnitOfWork) -> None:
    """Delete the states of ended attempts, and requests that expired long ago."""
    later = aliased(PulseState)
    followed = exists().where(later.job_id == PulseState.job_id, later.attempt > PulseState.attempt)
    old = (PulseState.advanced_at < tx.now - SILENT) | (
        (PulseState.advanced_at < tx.now - FOLLOWED) & followed
    )
    tx.session.execute(
        update(PulseState)
        .where(PulseState.state.is_not(None), PulseState.lease_until.is_(None), old)
        .values(state=None, pace=None)
        .execution_options(synchronize_session=False)
    )
    first = select(RecordingRequest.id).order_by(RecordingRequest.id).limit(_AT_ONCE)
    tx.session.execute(
        delete(RecordingRequest)
        .where(
            RecordingRequest.id.in_(first.scalar_subquery()),
            RecordingRequest.until < tx.now - REQUESTS_KEPT,
        )
        .execution_options(synchronize_session=False)
    )


# Columns of the Parquet export.
SCHEMA: Final = pa.schema(
    [
        *((name, pa.int64()) for name in (*KEYS, *MEASURES)),
        *((name, pa.string() if name == "phase" else pa.int64()) for name in BEAT_COLUMNS),
    ]
)


def export_pulse(container: Container, job: str, attempt: int | None = None) -> Iterator[bytes]:
    """Yield the stored pulse of a job as the pieces of a Parquet file.

    One minute at a time is in memory, read in a transaction of its own; a minute that is deleted
    meanwhile is left out.

    Parameters
    ----------
    attempt : int, optional
        An attempt; by default all.

    Raises
    ------
    NotFoundError
        There is no such job; raised before the first piece.
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
    """A writable file that keeps the written bytes until they are sent."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        """Return True: pyarrow writes to this file."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Store bytes until `take` returns them; return their number."""
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> bytes:
        """Return the bytes that were written since the last call, and forget them."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
