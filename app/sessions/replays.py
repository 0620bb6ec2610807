"""Replay stored sessions to get timelines of steps and answers to what-if questions.

The most recently used sessions stay prepared in memory: with 1,024 × 16 workers, preparing takes
seconds, and a step of a prepared session a few milliseconds.
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
from app.platform.settings import MIB
from app.sessions.models.tables import Session
from app.sessions.read import get_session, no_session, no_trace

# Limit of the sessions that are loaded at a time, each of them completely in memory.
AT_ONCE: Final = 2
WAIT_S: Final = 10.0

_turns = BoundedSemaphore(AT_ONCE)
_OTHERS: Final = "Others are asking; try again in a few seconds."


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """The stored operations of a session."""

    parts: Iterable[bytes]  # of the blob; an object store is read on iteration
    meta: Mapping[str, Any]  # metadata document, normalized

    def unpack(self) -> Trace:
        """Return the decompressed operations; call it after the transaction, as it takes long."""
        return read_stored(self.parts, parse_metadata(self.meta))


def stored_trace(tx: Reads, session_id: uuid.UUID) -> StoredTrace:
    """Return the stored operations of a session.

    Raises
    ------
    NotFoundError
        There is no such session, or its chunks are not merged.
    """
    blob = trace_blob(tx, session_id)
    meta = tx.session.execute(select(Session.meta).where(Session.id == session_id)).scalar_one()
    return StoredTrace(open_blob(tx, blob), meta)


def trace_blob(tx: Reads, session_id: uuid.UUID) -> uuid.UUID:
    """Return the blob id of a session's operations; raises what `stored_trace` raises."""
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
    """Return one step as a Chrome trace with host names, in pieces.

    Raises
    ------
    NotFoundError
        The trace has no such step or DP rank.
    UnanalyzableError
        The trace cannot be replayed.
    BusyError
        No turn became free in time. Like the other errors, it is raised before the first piece.
    """
    with whole_session():
        trace = stored.unpack()
        hosts: dict[tuple[int, int], str] = {}
        if trace.meta.hosts:
            rows = np.flatnonzero(trace.step == step)
            ranks, first = np.unique(trace.rank[rows], return_index=True)
            workers = zip(
                trace.dp[rows[first]].tolist(), trace.pp[rows[first]].tolist(), strict=True
            )
            # Reversed, so that the lowest rank of each worker overwrites the others: the analysis
            # uses this rank.
            rank_of = dict(reversed(list(zip(workers, ranks.tolist(), strict=True))))
            names = trace.meta.hosts
            hosts = {worker: names[rank] for worker, rank in rank_of.items() if rank in names}
        timeline = step_timeline(trace, step, dp_ranks)
    return perfetto(timeline, hosts)


@contextlib.contextmanager
def whole_session() -> Iterator[None]:
    """Wait for one of the `AT_ONCE` turns to hold a whole session in memory.

    Raises
    ------
    BusyError
        No turn became free in time.
    """
    # Callers have no open database connection and no trace in memory while they wait.
    if not _turns.acquire(timeout=WAIT_S):
        raise BusyError(_OTHERS)
    try:
        yield
    finally:
        # Without this, Arrow's memory pool would keep the memory.
        pa.default_memory_pool().release_unused()
        _turns.release()


# Key of a prepared session: the blob of its trace, and the adaptations that are switched off.
Key = tuple[uuid.UUID, frozenset[Name]]

# Memory limit of all prepared sessions of a process; a larger session is prepared for each
# question.
MOST_BYTES: Final = 512 * MIB
# A prepared session is dropped after this time without a use.
FORGOTTEN_AFTER_S: Final = 300.0


@dataclass(eq=False, slots=True)
class _Place:
    """A prepared session with its lock, as concurrent replays would write to the same arrays."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    replayed: Replayed | None = None
    size_bytes: int = 0
    used_at_s: float = 0.0


class PreparedSessions:
    """Cache of prepared sessions, sorted by last use, the oldest first.

    Parameters
    ----------
    most_bytes : int
        Limit of all together.
    forgotten_after_s : float
        Time after which an unused session is dropped.
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
        """Return the number of prepared sessions in the cache."""
        with self._lock:
            return sum(place.replayed is not None for place in self._places.values())

    @contextlib.contextmanager
    def of(self, key: Key, prepare: Callable[[], Replayed]) -> Iterator[Replayed]:
        """Lock a session for replays; prepare the session if it is not cached.

        Raises
        ------
        BusyError
            Other requests kept the session locked for too long.
        """
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
        if not place.turn.acquire(timeout=WAIT_S):
            raise BusyError(_OTHERS)
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
        """Drop unused sessions, then the least recently used ones while over the limit."""
        with self._lock:
            before_s = time.monotonic() - self._forgotten_after_s
            total = sum(place.size_bytes for place in self._places.values())
            for key, place in list(self._places.items()):
                if place.turn.locked():
                    continue  # its user drops unused sessions afterwards
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
    """Provide a session prepared for replays.

    Parameters
    ----------
    without : collection of Name
        Adaptations of the dependency model that are switched off.

    Raises
    ------
    NotFoundError
        There is no such session, or its trace is not stored.
    UnanalyzableError
        The trace cannot be replayed.
    BusyError
        Other requests kept the session locked for too long, or no turn became free in time.
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
    """Return a prepared session's memory in bytes: its arrays of values, which dominate."""
    return sum(
        group.layout.start_ns.nbytes
        + group.layout.duration_ns.nbytes
        + group.durations.recorded_ns.nbytes
        for group in replayed.groups
    )


def answer_question(
    container: Container, session_id: uuid.UUID, question: Question
) -> dict[str, Any]:
    """Answer a what-if question about an analyzed session; see `app.analysis.replay.what_if`.

    Raises
    ------
    InvalidQuestionError
        The question selects steps, ranks or types that the session does not have.
    NotFoundError
        There is no such session.
    ConflictError
        The session has no verdict: its replay says nothing about the job.
    BusyError
        Other requests kept the session locked for too long, or no turn became free in time.
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
