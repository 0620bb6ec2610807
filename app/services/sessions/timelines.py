"""The stored trace of a session, and a step of it as Perfetto opens it."""

from __future__ import annotations

from dataclasses import dataclass
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
    from collections.abc import Mapping, Sequence

    from app.analysis.trace.model import Trace
    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """The operations of a session as they are stored.

    Parameters
    ----------
    parts : sequence of bytes
        Of the blob.
    meta : mapping
        Metadata document, normalized.
    """

    parts: Sequence[bytes]
    meta: Mapping[str, Any]

    def unpack(self) -> Trace:
        """Return the operations, decompressed: work for after the transaction."""
        return unpack(self.parts, parse_metadata(self.meta))


def stored_trace(tx: Reads, session_id: uuid.UUID) -> StoredTrace:
    """Return the operations of a session.

    Raises
    ------
    NotFoundError
        If there is no such session, or its chunks are not merged.
    """
    row = tx.session.execute(
        select(Session.meta, Session.trace_blob, Session.state).where(Session.id == session_id)
    ).one_or_none()
    if row is None:
        raise no_session(session_id)
    if row.trace_blob is None:
        raise no_trace(row.state)
    return StoredTrace(tuple(read_blob(tx, row.trace_blob)), row.meta)


def perfetto_timeline(
    trace: Trace, step: int, dp_ranks: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return one step, recorded and ideal, as a Chrome trace that names the hosts.

    Parameters
    ----------
    trace : Trace
    step : int
        A training step.
    dp_ranks : sequence of int, optional
        Only these DP ranks.

    Raises
    ------
    NotFoundError
        If the trace has no such step or DP rank.
    UnanalyzableError
        If the trace cannot be replayed.
    """
    return perfetto(step_timeline(trace, step, dp_ranks), _hosts_of_workers(trace, step))


def _hosts_of_workers(trace: Trace, step: int) -> dict[tuple[int, int], str]:
    """Return the host of each (DP rank, stage): that of its lowest rank, which is analyzed."""
    at_step = trace.step == step
    triples = np.stack((trace.dp[at_step], trace.pp[at_step], trace.rank[at_step]), axis=1)
    # Sorted by rank last, highest first: the lowest one of a worker is what remains.
    ranks = {(dp, pp): rank for dp, pp, rank in np.unique(triples, axis=0)[::-1].tolist()}
    hosts = trace.meta.hosts
    return {worker: hosts[rank] for worker, rank in ranks.items() if rank in hosts}
