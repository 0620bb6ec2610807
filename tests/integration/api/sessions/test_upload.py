"""`paceline upload` with a server."""

from __future__ import annotations

import contextlib
import json
import threading
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from app.cli.connect import connect
from app.cli.server import ServerError
from app.cli.upload import content_type_of, upload
from app.errors import InvalidMetadataError
from benchmarks.support.receiver import Reply
from tests.integration.api import bodies
from tests.integration.api.sessions.test_pressure import SPOOLED, half_a_body
from tests.support.receiver import Receiver
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.api.conftest import Install, Installation


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    path.write_bytes(bodies.parquet())
    return path


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    path = tmp_path / "meta.yaml"
    path.write_text(bodies.META)
    return path


@contextlib.contextmanager
def working(installation: Installation) -> Iterator[None]:
    """Analyze sessions in the background while the context lasts."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.01):
            installation.analyze_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        done.set()
        worker.join()


def test_a_trace_is_sent_under_its_trial_name(
    installation: Installation, trace: Path, meta: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upload(trace, meta, server=installation.url, job=None, wait=False)
    [session] = installation.client.get("/api/v1/sessions").json()["sessions"]
    assert session["job"] == "sample"
    out, _ = capsys.readouterr()
    assert out.splitlines()[-1] == f"{installation.url}/sessions/{session['id']}"


def test_waiting_prints_the_verdict(
    installation: Installation, trace: Path, meta: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with working(installation):
        upload(trace, meta, server=installation.url, job="mine", wait=True)
    [session] = installation.client.get("/api/v1/sessions").json()["sessions"]
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == session["headline"]["sentence"]
    assert f"{installation.url}/sessions/{session['id']}" in err
    assert session["job"] == "mine"


def test_a_refused_trace_raises_the_codes_and_places_of_its_faults(
    installation: Installation, trace: Path, meta: Path
) -> None:
    trace.write_bytes(bodies.changed("rank", 77, -5))
    with pytest.raises(ServerError) as caught:
        upload(trace, meta, server=installation.url, job=None, wait=True)
    assert caught.value.stable_code == "trace.rank_out_of_range"
    assert (caught.value.faults[0].row, caught.value.faults[0].column) == (77, "rank")


def test_a_session_without_a_verdict_raises_the_reason(
    installation: Installation, trace: Path, meta: Path
) -> None:
    # Without backward passes, no step is complete.
    rows = bodies.table()
    keep = [op != "backward-compute" for op in rows["op"].to_pylist()]
    trace.write_bytes(bodies.written(rows.filter(keep)))
    with working(installation), pytest.raises(ServerError) as caught:
        upload(trace, meta, server=installation.url, job=None, wait=True)
    assert "discarded" in caught.value.message
    assert caught.value.stable_code.startswith("trace.")


def test_an_upload_to_a_busy_server_is_repeated(
    install: Install,
    trace: Path,
    meta: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with install(ingest_budget_bytes=3_000_000) as installation, contextlib.ExitStack() as stack:
        stack.enter_context(half_a_body(installation, 3_000_000, 2_996_000))

        def make_room(_pause_s: float) -> None:
            stack.close()
            wait_for(lambda: installation.metric(SPOOLED) == 0, "room")

        monkeypatch.setattr("app.cli.server.time.sleep", make_room)
        upload(trace, meta, server=installation.url, job=None, wait=False)
        monkeypatch.undo()
        assert installation.rows()["session"] == 1
    assert "busy" in capsys.readouterr().err


def test_a_missing_server_is_reported(trace: Path, meta: Path) -> None:
    with pytest.raises(ServerError) as caught:
        upload(trace, meta, server="http://127.0.0.1:9", job=None, wait=False)
    assert caught.value.stable_code == "server.unreachable"
    with pytest.raises(ServerError) as caught:
        upload(trace, meta, server="ftp://localhost", job=None, wait=False)
    assert caught.value.stable_code == "server.unreachable"


@pytest.mark.parametrize(
    "reply",
    [Reply(404, b"nothing here"), Reply(200, b"<html>", {"Content-Type": "text/html"})],
    ids=["refusal", "page"],
)
def test_a_server_that_is_not_paceline_is_named(trace: Path, meta: Path, reply: Reply) -> None:
    with Receiver(lambda _: reply) as other, pytest.raises(ServerError) as caught:
        upload(trace, meta, server=f"http://127.0.0.1:{other.port}", job=None, wait=False)
    assert caught.value.stable_code == "server.not_paceline"
    assert f"answers {reply.status}" in caught.value.message


@pytest.mark.parametrize(
    ("name", "text", "media_type"),
    [
        ("meta.yaml", bodies.META, "application/yaml"),
        ("meta.json", json.dumps(yaml.safe_load(bodies.META)), "application/json"),
    ],
)
def test_metadata_are_sent_as_the_file_is(
    trace: Path, tmp_path: Path, name: str, text: str, media_type: str
) -> None:
    meta = tmp_path / name
    meta.write_text(text)
    with Receiver(lambda _: Reply(400)) as other, pytest.raises(ServerError):
        upload(trace, meta, server=f"http://127.0.0.1:{other.port}", job=None, wait=False)
    [got] = other.got
    form = f"Content-Type: {got.headers['content-type']}\r\n\r\n".encode() + got.body
    parts = {
        part.get_param("name", header="content-disposition"): part
        for part in message_from_bytes(form).walk()
    }
    sent = parts["meta"]
    assert (sent.get_filename(), sent.get_content_type()) == (name, media_type)


@pytest.mark.parametrize("name", ["meta.yaml", "meta.json"])
def test_metadata_of_either_kind_are_understood(
    installation: Installation, trace: Path, tmp_path: Path, name: str
) -> None:
    meta = tmp_path / name
    meta.write_text(json.dumps(yaml.safe_load(bodies.META)))
    upload(trace, meta, server=installation.url, job=None, wait=False)
    assert len(installation.client.get("/api/v1/sessions").json()["sessions"]) == 1


def test_a_missing_job_name_is_reported_before_anything_is_sent(trace: Path, meta: Path) -> None:
    meta.write_text("dp: 3\npp: 2\n")
    for metadata in (meta, None):
        with pytest.raises(InvalidMetadataError) as caught:
            upload(trace, metadata, server="http://127.0.0.1:9", job=None, wait=False)
        assert caught.value.stable_code == "metadata.missing_job"


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a.parquet", bodies.PARQUET),
        ("a.ndjson", bodies.NDJSON),
        ("a.ndjson.gz", bodies.NDJSON),
        ("a.b.jsonl.zst", bodies.NDJSON),
        ("a", "application/octet-stream"),
        ("a.gz", "application/octet-stream"),
    ],
)
def test_a_file_name_says_the_content_type(name: str, content_type: str) -> None:
    assert content_type_of(Path(name)) == content_type


def test_connect_shows_where_its_tiny_session_is(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(installation.url, "llama-70b", "curl", None, send=True)
    *lines, url = capsys.readouterr().out.splitlines()
    installation.analyze_all()

    assert f'"{installation.url}/api/v1/jobs/llama-70b/sessions"' in "\n".join(lines)
    session = url.removeprefix(f"{installation.url}/sessions/")
    found = installation.client.get(f"/api/v1/sessions/{session}").json()
    # The test session belongs to a separate job, not to the user's job.
    assert (found["job"], found["state"]) == ("llama-70b-connect", "analyzed")


def test_a_folder_as_convert_writes_it_is_sent(
    installation: Installation,
    trace: Path,
    meta: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert meta.parent == trace.parent
    upload(trace.parent, None, server=installation.url, job=None, wait=False)

    session = capsys.readouterr().out.strip().rsplit("/", 1)[1]
    found = installation.client.get(f"/api/v1/sessions/{session}").json()
    assert (found["job"], found["operations"]) == ("sample", len(bodies.trace()))
