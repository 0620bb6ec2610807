"""Sessions prepared for replay; the latest stay ready, because who looks at one asks again.

Of 1,024 × 16 workers, preparing takes seconds, and a step of what is prepared a few milliseconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.replay.what_if import Against, Question, answer
from app.analysis.report.charts import perfetto, step_timeline
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.model import Trace
from app.analysis.trace.storage import read_stored
from app.errors import BusyError, ConflictError
from app.platform.blobs import open_blob
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session
from app.sessions.read import get_session, no_session, no_trace

# ---- The stored trace of a session, and a step of it as Perfetto opens it ----------------------


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


Key = tuple[uuid.UUID, frozenset[Name]]

# Of a process; a session that is larger is prepared for each question.
MOST_BYTES: Final = 512 * 1024 * 1024
# It is not asked for any more.
FORGOTTEN_AFTER_S: Final = 300.0


@dataclass(eq=False, slots=True)
class _Place:
    """A session, and whose turn it is to ask it: replays share what they write to."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    replayed: Replayed | None = None
    size_bytes: int = 0
    used_at_s: float = 0.0


class PreparedSessions:
    """Sessions that are ready, the latest asked for last.

    Parameters
    ----------
    most_bytes : int
        What all of them together may take.
    forgotten_after_s : float
        How long one stays that is not asked for.
    """

    def __init__(
        self, most_bytes: int = MOST_BYTES, forgotten_after_s: float = FORGOTTEN_AFTER_S
    ) -> None:
        self._most_bytes, self._forgotten_after_s = most_bytes, forgotten_after_s
        self._places: OrderedDict[Key, _Place] = OrderedDict()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    @property
    def held(self) -> int:
        """Return how many are ready."""
        with self._lock:
            return sum(place.replayed is not None for place in self._places.values())

    @contextlib.contextmanager
    def of(self, key: Key, prepare: Callable[[], Replayed]) -> Iterator[Replayed]:
        """Take a turn to ask a session, which is prepared where it is not ready.

        Raises
        ------
        BusyError
            If others keep asking the same.
        """
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
        if not place.turn.acquire(timeout=WAIT_S):
            raise BusyError("Others are asking; try again in a few seconds.")
        try:
            if place.replayed is None:
                place.replayed = prepare()
                place.size_bytes = _size_bytes(place.replayed)
            yield place.replayed
        finally:
            place.used_at_s = time.monotonic()
            place.turn.release()
            self._tidy()

    def _tidy(self) -> None:
        """Let go of what is not asked for any more, then of the oldest until the rest fits."""
        with self._lock:
            before_s = time.monotonic() - self._forgotten_after_s
            total = sum(place.size_bytes for place in self._places.values())
            for key, place in list(self._places.items()):
                if place.turn.locked():
                    continue  # who asks it tidies afterwards
                if (
                    place.replayed is None
                    or place.used_at_s <= before_s
                    or total > self._most_bytes
                ):
                    total -= place.size_bytes
                    del self._places[key]
            if self._places and self._timer is None:
                self._timer = threading.Timer(self._forgotten_after_s, self._look_again)
                self._timer.daemon = True
                self._timer.start()

    def _look_again(self) -> None:
        with self._lock:
            self._timer = None
        self._tidy()


_prepared: Final = PreparedSessions()


@contextlib.contextmanager
def prepared_session(
    container: Container, session_id: uuid.UUID, without: Collection[Name] = ()
) -> Iterator[Replayed]:
    """Take a turn to ask a session.

    Parameters
    ----------
    without : collection of Name
        Adaptations of the dependency model that are switched off.

    Raises
    ------
    NotFoundError
        If there is no such session, or no trace of it.
    UnanalyzableError
        If the trace cannot be replayed.
    BusyError
        If others keep asking.
    """
    with container.reading() as tx:
        blob = trace_blob(tx, session_id)

    def prepare() -> Replayed:
        with whole_session():
            with container.reading() as tx:
                stored = stored_trace(tx, session_id)
            return prepare_replay(stored.unpack(), without)

    with _prepared.of((blob, frozenset(without)), prepare) as replayed:
        yield replayed


def _size_bytes(replayed: Replayed) -> int:
    """Return what a session takes while it is ready: all but its values is little."""
    return sum(
        group.layout.start_ns.nbytes
        + group.layout.duration_ns.nbytes
        + group.durations.recorded_ns.nbytes
        for group in replayed.groups
    )


# ---- Questions of one's own about a session, answered by replaying its stored trace ------------


def answer_question(
    container: Container, session_id: uuid.UUID, question: Question
) -> dict[str, Any]:
    """Answer a question about an analyzed session; see `app.analysis.replay.what_if`.

    Raises
    ------
    InvalidQuestionError
        If it asks for what the session does not have.
    NotFoundError
        If there is no such session.
    ConflictError
        If the session has no verdict: its replay says nothing about the job.
    BusyError
        If others keep asking.
    """
    with container.reading() as tx:
        row = get_session(tx, session_id, container.settings).row
    if row.headline is None:
        raise ConflictError(
            f"The session is {row.state}; only an analyzed one can be asked about.",
            code="what_if.no_verdict",
        )
    against = Against(row.headline.kind.value, row.headline.slowdown)
    with prepared_session(container, session_id, question.without) as replayed:
        return answer(replayed, question).as_document(against)
