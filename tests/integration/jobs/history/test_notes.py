"""Notes on a job's time axis: written, listed, deleted, limited, within one project."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from app.errors import ConflictError
from app.jobs import time_axis as notes
from app.jobs.models import Job, JobNote
from app.jobs.time_axis import write_note
from app.platform.database.states import NoteKind
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container

NOTES = "/api/v1/jobs/llm/notes"


@pytest.fixture(autouse=True)
def llm(container: Container) -> None:
    store(container, small_trace(), job="llm")


def test_a_note_is_written_listed_and_deleted(client: httpx.Client) -> None:
    at = "2026-01-02T03:04:05Z"
    said = {"text": "  image 7 ", "kind": "deployment", "at": at, "by": "ann"}
    made = client.post(NOTES, json=said)
    assert made.status_code == 201, made.text
    assert made.json() | {"noted_at": ""} == {
        "id": made.json()["id"],
        "at": at,
        "kind": "deployment",
        "text": "image 7",
        "author": "ann",
        "noted_at": "",
    }
    later = client.post(NOTES, json={"text": "batch 2048"}).json()
    listed = client.get(NOTES).json()["notes"]
    assert [note["text"] for note in listed] == ["batch 2048", "image 7"]
    old = client.get(NOTES, params={"to": "2026-01-03T00:00:00Z"}).json()["notes"]
    assert [note["text"] for note in old] == ["image 7"]
    assert client.delete(f"{NOTES}/{later['id']}").status_code == 204
    assert client.delete(f"{NOTES}/{later['id']}").status_code == 404
    assert len(client.get(NOTES).json()["notes"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"text": " "},
        {"text": "x" * 2001},
        {"text": "nul \x00"},
        {"text": "x", "kind": "party"},
        {"text": "x", "at": "2026-01-02T03:04:05"},
        {"text": "x", "at": "0001-01-01T00:00:00+14:00"},
        {"text": "x", "more": 1},
    ],
)
def test_an_invalid_note_is_refused(client: httpx.Client, body: dict[str, object]) -> None:
    assert client.post(NOTES, json=body).status_code == 422


def test_a_note_is_of_a_job_and_of_what_happened(client: httpx.Client) -> None:
    assert client.post("/api/v1/jobs/none/notes", json={"text": "x"}).status_code == 404
    assert client.get("/api/v1/jobs/none/notes").status_code == 404
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    refused = client.post(NOTES, json={"text": "x", "at": soon})
    assert (refused.status_code, refused.json()["code"]) == (409, "note.in_future")


def test_a_job_has_a_limit_of_notes(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MOST_NOTES", 3)
    with container.uow() as tx:
        job = tx.session.execute(select(Job.id)).scalar_one()
        tx.session.add_all(
            JobNote(job_id=job, at=tx.now, kind=NoteKind.NOTE, words="x", author="ann")
            for _ in range(3)
        )
    with pytest.raises(ConflictError, match="at most 3 notes"):
        write_note(container, "llm", words="one more")


def test_notes_go_with_their_job(client: httpx.Client, container: Container) -> None:
    client.post(NOTES, json={"text": "x"})
    assert client.patch("/api/v1/jobs/llm", json={"name": "new"}).status_code == 204
    assert len(client.get("/api/v1/jobs/new/notes").json()["notes"]) == 1
    assert client.delete("/api/v1/jobs/new").status_code == 204
    with container.reading() as tx:
        assert tx.session.execute(select(JobNote.id)).all() == []
