"""Timelines of single steps, replayed from a session's stored trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from app.analysis.report.timeline import perfetto, step_timeline
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.storage import unpack
from app.db.blobs import read_blob
from app.db.models.sessions import Session
from app.services.sessions.read import no_session, no_trace

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from app.analysis.report.timeline import Timeline
    from app.analysis.trace.model import Trace
    from app.services.container import Container


def timeline(
    container: Container,
    session_id: uuid.UUID,
    step: int,
    dp_ranks: Sequence[int] | None = None,
) -> Timeline:
    """Return the recorded and the ideal timeline of one step.

    Parameters
    ----------
    container : Container
    session_id : UUID
    step : int
        A training step.
    dp_ranks : sequence of int, optional
        Only these DP ranks.

    Raises
    ------
    NotFoundError
        If there is no such session, or the trace has no such step or DP rank.
    UnanalyzableError
        If the trace cannot be replayed.
    """
    return step_timeline(stored_trace(container, session_id), step, dp_ranks)


def perfetto_timeline(
    container: Container,
    session_id: uuid.UUID,
    step: int,
    dp_ranks: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return what `timeline` does as a Chrome trace, which Perfetto opens, with names of hosts."""
    trace = stored_trace(container, session_id)
    return perfetto(step_timeline(trace, step, dp_ranks), _hosts_of_workers(trace, step))


def stored_trace(container: Container, session_id: uuid.UUID) -> Trace:
    """Return the operations of a session.

    Raises
    ------
    NotFoundError
        If there is no such session, or its chunks are not merged.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.meta, Session.trace_blob, Session.state).where(Session.id == session_id)
        ).one_or_none()
        if row is None:
            raise no_session(session_id)
        if row.trace_blob is None:
            raise no_trace(row.state)
        parts = list(read_blob(tx, row.trace_blob))
    return unpack(parts, parse_metadata(row.meta))


def _hosts_of_workers(trace: Trace, step: int) -> dict[tuple[int, int], str]:
    """Return the host of each (DP rank, stage): that of its lowest rank, which is analyzed."""
    at_step = trace.step == step
    triples = np.stack((trace.dp[at_step], trace.pp[at_step], trace.rank[at_step]), axis=1)
    # Sorted by rank last, highest first: the lowest one of a worker is what remains.
    ranks = {(dp, pp): rank for dp, pp, rank in np.unique(triples, axis=0)[::-1].tolist()}
    hosts = trace.meta.hosts
    return {worker: hosts[rank] for worker, rank in ranks.items() if rank in hosts}
