from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from app.analysis.replay.session import prepare_replay
from app.errors import BusyError
from app.sessions import replays as prepared
from app.sessions.replays import PreparedSessions
from tests.support.sessions import small_trace
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from app.analysis.replay.session import Replayed

Key = tuple[uuid.UUID, frozenset[str]]


class Prepares:
    """Prepares sessions, and counts the calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Replayed:
        self.count += 1
        return prepare_replay(small_trace())


def ask(sessions: PreparedSessions, blob: uuid.UUID, prepare: Prepares) -> Replayed:
    with sessions.of((blob, frozenset()), prepare) as replayed:
        return replayed


def size_bytes() -> int:
    return prepared._size_bytes(prepare_replay(small_trace()))


def test_a_session_is_prepared_once_for_all_who_ask() -> None:
    sessions, prepare, blob = PreparedSessions(), Prepares(), uuid.uuid4()
    assert ask(sessions, blob, prepare) is ask(sessions, blob, prepare)
    ask(sessions, uuid.uuid4(), prepare)
    assert (prepare.count, sessions.held) == (2, 2)


def test_the_least_recently_used_replay_is_dropped() -> None:
    sessions, prepare = PreparedSessions(most_bytes=2 * size_bytes()), Prepares()
    first, second, third = (uuid.uuid4() for _ in range(3))
    for blob in (first, second, first, third, first):
        ask(sessions, blob, prepare)
    assert (prepare.count, sessions.held) == (3, 2)
    ask(sessions, second, prepare)
    assert prepare.count == 4


def test_one_that_is_too_large_is_answered_and_not_held() -> None:
    sessions, prepare, blob = PreparedSessions(most_bytes=1), Prepares(), uuid.uuid4()
    assert ask(sessions, blob, prepare).steps.size
    assert sessions.held == 0


def test_unused_replays_are_dropped() -> None:
    sessions = PreparedSessions(forgotten_after_s=0.01)
    ask(sessions, uuid.uuid4(), Prepares())
    wait_for(lambda: sessions.held == 0, "end of what is held")


def test_who_asks_waits_for_a_turn_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "WAIT_S", 0.01)
    sessions, prepare, blob = PreparedSessions(), Prepares(), uuid.uuid4()
    asked, answered = threading.Event(), threading.Event()

    def keep_asking() -> None:
        with sessions.of((blob, frozenset()), prepare):
            asked.set()
            answered.wait()

    other = threading.Thread(target=keep_asking)
    other.start()
    asked.wait()
    with pytest.raises(BusyError):
        ask(sessions, blob, prepare)
    answered.set()
    other.join()
    ask(sessions, blob, prepare)
    assert prepare.count == 1


def test_a_failed_preparation_raises_each_time() -> None:
    def refuse() -> Replayed:
        raise ValueError

    sessions, blob = PreparedSessions(), uuid.uuid4()
    for _ in range(2):
        with pytest.raises(ValueError), sessions.of((blob, frozenset()), refuse):  # noqa: PT011 - of the test
            pass
    assert sessions.held == 0
