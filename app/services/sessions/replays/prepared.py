"""Sessions prepared for replay; the latest stay ready, because who looks at one asks again.

Of 1,024 × 16 workers, preparing takes seconds, and a step of what is prepared a few milliseconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from app.analysis.replay.session import prepare_replay
from app.errors import BusyError
from app.services.sessions.replays.timelines import WAIT_S, stored_trace, trace_blob, whole_session

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Iterator

    from app.analysis.replay.adaptations.evidence import Name
    from app.analysis.replay.session import Replayed
    from app.services.container import Container

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
