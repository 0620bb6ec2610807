"""The stored trace of a session, and a step of it as Perfetto opens it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from app.analysis.report.timeline import perfetto, step_timeline
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.storage.stored import read_stored
from app.db.blobs import open_blob
from app.db.models.sessions import Session
from app.errors import BusyError
from app.services.sessions.read import no_session, no_trace

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from app.analysis.trace.model import Trace
    from app.db.unit_of_work import Reads

# Each holds a whole session in memory while it replays it.
AT_ONCE: Final = 2
WAIT_S: Final = 10.0

_turns = BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """The operations of a session as they are stored."""

    parts: Iterable[bytes]  # of the blob; what is in an object store is read when it is asked for
    meta: Mapping[str, Any]  # metadata document, normalized

    def unpack(self) -> Trace:
        """Return the operations, decompressed: work for after the transaction."""
        return read_stored(self.parts, parse_metadata(self.meta))


def stored_trace(tx: Reads, session_id: uuid.UUID) -> StoredTrace:
    """Return the operations of a session.

    Raises
    ------
    NotFoundError
        If there is no such session, or its chunks are not merged.
    """
    blob = trace_blob(tx, session_id)
    meta = tx.session.execute(select(Session.meta).where(Session.id == session_id)).scalar_one()
    return StoredTrace(open_blob(tx, blob), meta)


def trace_blob(tx: Reads, session_id: uuid.UUID) -> uuid.UUID:
    """Return which blob has the operations of a session; see `stored_trace`."""
    row = tx.session.execute(
        select(Session.trace_blob, Session.state, Session.trace_removed_at).where(
            Session.id == session_id
        )
    ).one_or_none()
    if row is None:
        raise no_session(session_id)
    blob: uuid.UUID | None = row.trace_blob
    if blob is None:
        raise no_trace(row.state, row.trace_removed_at)
    return blob


def perfetto_timeline(
    stored: StoredTrace, step: int, dp_ranks: Sequence[int] | None = None
) -> Iterator[str]:
    """Return one step as a Chrome trace that names the hosts, piece by piece.

    What can be wrong is raised before the first piece.

    Raises
    ------
    NotFoundError
        If the trace has no such step or DP rank.
    UnanalyzableError
        If the trace cannot be replayed.
    BusyError
        If others keep asking.
    """
    with whole_session():
        trace = stored.unpack()
        hosts = _hosts_of_workers(trace, step)
        timeline = step_timeline(trace, step, dp_ranks)
    return perfetto(timeline, hosts)


@contextlib.contextmanager
def whole_session() -> Iterator[None]:
    """Take one of the few turns to hold all operations of a session in memory.

    Raises
    ------
    BusyError
        If others keep asking.
    """
    # Who waits for a turn keeps neither a connection nor a trace.
    if not _turns.acquire(timeout=WAIT_S):
        raise BusyError("Others are asking; try again in a few seconds.")
    try:
        yield
    finally:
        # What it took would stay the process's otherwise.
        pa.default_memory_pool().release_unused()
        _turns.release()


def _hosts_of_workers(trace: Trace, step: int) -> dict[tuple[int, int], str]:
    """Return the host of each (DP rank, stage): that of its lowest rank, which is analyzed."""
    if not trace.meta.hosts:
        return {}
    rows = np.flatnonzero(trace.step == step)
    ranks, first = np.unique(trace.rank[rows], return_index=True)
    places = zip(trace.dp[rows[first]].tolist(), trace.pp[rows[first]].tolist(), strict=True)
    # The lowest rank of a worker comes last, and remains.
    workers = dict(reversed(list(zip(places, ranks.tolist(), strict=True))))
    hosts = trace.meta.hosts
    return {worker: hosts[rank] for worker, rank in workers.items() if rank in hosts}
