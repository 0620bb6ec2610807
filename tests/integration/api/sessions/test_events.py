"""Streams of states: every change arrives, also after a disconnection of client or server."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import uuid
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import text

from app.platform.database.states import SessionState
from app.sessions.api.live import Stream
from app.sessions.decoding import StateChange
from tests.integration.api import bodies
from tests.integration.api.outage import away
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.api.conftest import Install, Installation

FLEET = "/api/v1/events"


class Events:
    """A stream that is read in a thread."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.last_id = ""

    def line(self) -> str | None:
        """Return the next line; None at the end of the stream."""
        return self._lines.get(timeout=LIMIT_S)

    def next(self) -> dict[str, Any] | None:
        """Return the data of the next event; None at the end of the stream."""
        name = data = None
        while (line := self.line()) is not None:
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "id":
                self.last_id = value
            elif not line and data is not None:
                assert name == "state"
                found: dict[str, Any] = json.loads(data)
                return found
        return None

    def _read(self) -> None:
        with contextlib.suppress(httpx.HTTPError, httpx.StreamClosed):
            for line in self._response.iter_lines():
                self._lines.put(line)
        self._lines.put(None)


@contextlib.contextmanager
def events(
    installation: Installation, path: str, headers: dict[str, str] | None = None
) -> Iterator[Events]:
    with (
        httpx.Client(base_url=installation.url, trust_env=False, timeout=LIMIT_S) as client,
        client.stream("GET", path, headers=headers) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in response.headers
        yield Events(response)


def move(installation: Installation, session: str, state: str) -> None:
    """Change a session's state as workers do."""
    with installation.container.uow() as tx:
        tx.session.connection().execute(
            text("UPDATE session SET state = :state, state_changed_at = now() WHERE id = :id"),
            {"state": state, "id": session},
        )
        tx.session.connection().execute(text(f"NOTIFY paceline_session, '{session}'"))


def test_a_received_session_and_its_analysis_are_announced_at_once(
    installation: Installation,
) -> None:
    with events(installation, FLEET) as stream:
        session = installation.post().json()["session"]
        assert stream.next() == {"session": session, "state": "queued"}
        installation.analyze_all()
        states = [stream.next()]
        while states[-1] is not None and states[-1]["state"] == "analyzing":
            states.append(stream.next())
        assert states[-1] == {"session": session, "state": "analyzed"}


def test_the_stream_of_a_session_starts_with_its_state_and_tells_of_no_other(
    installation: Installation,
) -> None:
    mine = installation.post().json()["session"]
    other = installation.post(params=bodies.SIZES | {"run_id": "other"}).json()["session"]
    with events(installation, f"/api/v1/sessions/{mine}/events") as stream:
        assert stream.next() == {"session": mine, "state": "queued"}
        move(installation, other, "failed")
        move(installation, mine, "analyzing")
        assert stream.next() == {"session": mine, "state": "analyzing"}


def test_every_stream_gets_every_event(installation: Installation) -> None:
    session = installation.post().json()["session"]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(events(installation, FLEET)) for _ in range(5)]
        for stream in streams:
            assert stream.next() == {"session": session, "state": "queued"}
        move(installation, session, "analyzing")
        for stream in streams:
            assert stream.next() == {"session": session, "state": "analyzing"}
        assert installation.metric("paceline_event_streams") == 5
        with installation.container.engine.connect() as connection:
            listening = connection.execute(
                text(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE application_name = 'paceline events'"
                    " AND datname = current_database()"
                )
            ).scalar_one()
        assert listening == 1
    wait_for(lambda: installation.metric("paceline_event_streams") == 0, "end of the streams")


def test_a_browser_that_reconnects_gets_the_events_that_it_missed(
    installation: Installation,
) -> None:
    missed, later = (
        installation.post(params=bodies.SIZES | {"run_id": run}).json()["session"]
        for run in ("a", "b")
    )
    with installation.container.uow() as tx:
        # Both sessions were finished an hour ago.
        tx.session.connection().execute(
            text(
                "UPDATE session SET state = 'analyzed',"
                " state_changed_at = now() - interval '1 hour'"
            )
        )
    with events(installation, FLEET) as stream:
        move(installation, later, "failed")
        # A page that has just been loaded gets no events of long finished sessions.
        assert stream.next() == {"session": later, "state": "failed"}
    an_hour_ago = str(int(stream.last_id) - 3_700_000_000)
    with events(installation, FLEET, {"Last-Event-ID": an_hour_ago}) as stream:
        assert stream.next() == {"session": missed, "state": "analyzed"}
        assert stream.next() == {"session": later, "state": "failed"}


@pytest.mark.parametrize("last_event_id", ["x", "-1", "1e3", str(2**60)])
def test_an_event_id_that_is_none_of_ours_is_refused(
    installation: Installation, last_event_id: str
) -> None:
    answer = installation.client.get(FLEET, headers={"Last-Event-ID": last_event_id})
    assert answer.status_code == 422


def test_a_database_that_was_away_is_read_again(installation: Installation) -> None:
    session = installation.post().json()["session"]
    with events(installation, FLEET) as stream:
        assert stream.next() == {"session": session, "state": "queued"}
        with away(installation.container.engine):
            assert installation.client.get("/api/v1/sessions").status_code == 503
            # The listener is gone, so this change is found by polling.
        move(installation, session, "analyzing")
        while (told := stream.next()) == {"session": session, "state": "queued"}:
            pass
        assert told == {"session": session, "state": "analyzing"}


def test_streams_end_when_the_server_begins_to_stop(install: Install) -> None:
    with contextlib.ExitStack() as stack:
        with install() as installation:
            session = installation.post().json()["session"]
            stream = stack.enter_context(events(installation, FLEET))
            assert stream.next() == {"session": session, "state": "queued"}
        while stream.line() is not None:
            pass


def test_a_silent_stream_is_kept_alive(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.05)
    with events(installation, FLEET) as stream:
        while (line := stream.line()) != ": ping":
            assert line is not None


def test_many_changes_of_one_session_wait_as_one() -> None:
    session = uuid.uuid4()
    stream = Stream(1, None)
    for number in range(1000):
        stream.push([StateChange(1, session, SessionState.QUEUED, number)])
    assert len(stream._pending) == 1
