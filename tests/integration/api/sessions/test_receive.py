"""Sending sessions: every form of a body, and repetitions."""

from __future__ import annotations

import concurrent.futures
import gzip
import threading
import uuid
from typing import TYPE_CHECKING

import pytest
import zstandard
from sqlalchemy import event, text

from app.analysis.trace.encode import to_ndjson_gz
from app.platform.blobs import read_blob
from tests.integration.api import bodies

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Installation


def ndjson() -> bytes:
    """Return the sample session as plain NDJSON with its header line."""
    return gzip.decompress(to_ndjson_gz(bodies.trace()))


def test_a_parquet_body_is_stored_with_its_work_before_the_answer(
    installation: Installation,
) -> None:
    answer = installation.post(job="llama-70b")
    assert answer.status_code == 202
    body = answer.json()
    assert body["state"] == "queued"
    assert body["job"] == "llama-70b"
    assert body["number"] == 1
    assert body["url"] == f"{installation.url}/sessions/{body['session']}"
    assert answer.headers["location"] == f"/api/v1/sessions/{body['session']}"
    with installation.container.uow() as tx:
        session = (
            tx.session.connection()
            .execute(text("SELECT operations, steps, trace_format, trace_blob, state FROM session"))
            .one()
        )
        run = (
            tx.session.connection()
            .execute(text("SELECT kind, state, subject_id FROM task_run"))
            .one()
        )
        stored = b"".join(read_blob(tx, session.trace_blob))
    assert session.operations == len(bodies.trace())
    assert session.steps == 12
    assert session.trace_format == "parquet"
    assert run == ("analyze_session", "queued", uuid.UUID(body["session"]))
    assert stored == bodies.parquet()


def test_a_body_that_is_stored_as_it_came_takes_one_transaction(installation: Installation) -> None:
    assert installation.post().is_success
    engine = installation.container.engine
    begun: list[str] = []

    # By thread, because listeners for changes read them on another thread.
    def begin(_connection: object) -> None:
        begun.append(threading.current_thread().name)

    event.listen(engine, "begin", begin)
    assert installation.post(params=bodies.SIZES | {"run_id": "second"}).is_success
    event.remove(engine, "begin", begin)
    assert begun.count("AnyIO worker thread") == 1
    rows = installation.rows()
    assert (rows["session"], rows["task_run"]) == (2, 2)


def test_lines_that_are_not_compressed_are_stored_packed(installation: Installation) -> None:
    body = ndjson()
    assert installation.post(body, params={}, headers={"Content-Type": bodies.NDJSON}).is_success
    with installation.container.uow() as tx:
        blob = tx.session.connection().execute(text("SELECT trace_blob FROM session")).scalar_one()
        assert sum(map(len, read_blob(tx, blob))) < len(body) / 4


def test_a_refused_body_that_would_be_stored_as_it_came_leaves_nothing(
    installation: Installation,
) -> None:
    answer = installation.post(bodies.parquet(), params=bodies.SIZES | {"dp": 1, "world": 4})
    assert answer.status_code == 422
    rows = installation.rows()
    assert (rows["session"], rows["task_run"], rows["job"], rows["blob_part"]) == (0, 0, 0, 0)


def test_the_published_columns_are_accepted(installation: Installation) -> None:
    start, duration = bodies.published_times()
    answer = installation.post(bodies.published(start, duration))
    assert answer.status_code == 202
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}").json()
    assert found["trace_format"] == "parquet-published"


@pytest.mark.parametrize(
    ("compress", "headers"),
    [
        (gzip.compress, {"Content-Type": bodies.NDJSON}),
        (gzip.compress, {"Content-Type": bodies.NDJSON, "Content-Encoding": "gzip"}),
        (gzip.compress, {"Content-Type": "application/gzip"}),
        (zstandard.compress, {"Content-Type": bodies.NDJSON}),
        (zstandard.compress, {"Content-Type": bodies.NDJSON, "Content-Encoding": "zstd"}),
        (bytes, {"Content-Type": bodies.NDJSON}),
        (gzip.compress, {}),
        (gzip.compress, {"Content-Type": "application/x-www-form-urlencoded"}),
    ],
    ids=["gzip", "coded-gzip", "gzip-type", "zstd", "coded-zstd", "plain", "untyped", "curl"],
)
def test_ndjson_carries_its_metadata_in_its_header(
    installation: Installation, compress: type[bytes], headers: dict[str, str]
) -> None:
    answer = installation.post(compress(ndjson()), params={}, headers=headers)
    assert answer.status_code == 202, answer.text
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}").json()
    assert found["trace_format"] == "ndjson"
    assert found["sizes"]["dp"] == 3
    assert found["operations"] == len(bodies.trace())


@pytest.mark.parametrize("trace_first", [False, True])
def test_metadata_comes_in_a_part_in_either_order(
    installation: Installation, *, trace_first: bool
) -> None:
    parts: list[tuple[str, tuple[str | None, str | bytes, str]]] = [
        ("meta", (None, bodies.META, "application/yaml")),
        ("trace", ("trace.parquet", bodies.parquet(), bodies.PARQUET)),
    ]
    answer = installation.client.post(
        "/api/v1/jobs/job/sessions", files=parts[::-1] if trace_first else parts
    )
    assert answer.status_code == 202, answer.text
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}").json()
    assert found["meta"]["trial_name"] == "sample"
    assert found["operations"] == len(bodies.trace())


def test_a_multipart_body_that_comes_byte_by_byte_is_the_same(installation: Installation) -> None:
    whole = installation.client.build_request(
        "POST",
        "/api/v1/jobs/job/sessions",
        files={"trace": ("t", bodies.parquet(), bodies.PARQUET)},
        params=bodies.SIZES,
    )
    content = whole.read()

    def pieces() -> list[bytes]:
        ends = [content[at : at + 1] for at in range(300)]
        return [
            *ends,
            content[300:-300],
            *(content[at : at + 1] for at in range(-300, -1)),
            content[-1:],
        ]

    answer = installation.client.post(
        whole.url, content=iter(pieces()), headers={"Content-Type": whole.headers["content-type"]}
    )
    assert answer.status_code == 202, answer.text
    assert installation.post().status_code == 200


def test_the_same_body_again_is_the_same_session(installation: Installation) -> None:
    first = installation.post()
    before = installation.rows()
    again = installation.post()
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()
    assert installation.rows() == before


def test_the_same_body_with_other_metadata_is_another_session(installation: Installation) -> None:
    first = installation.post().json()
    other = installation.post(params=bodies.SIZES | {"trial_name": "b"})
    assert other.status_code == 202
    assert other.json()["number"] == first["number"] + 1


def test_the_same_body_is_a_session_of_its_own_in_each_job(installation: Installation) -> None:
    sent = [installation.post(job=job).json() for job in ("a", "b")]
    assert sent[0]["session"] != sent[1]["session"]
    assert [answer["number"] for answer in sent] == [1, 1]


def test_the_same_body_at_the_same_time_is_one_session(installation: Installation) -> None:
    def post() -> httpx.Response:
        return installation.post()

    with concurrent.futures.ThreadPoolExecutor(8) as senders:
        answers = [task.result() for task in [senders.submit(post) for _ in range(16)]]
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [202]
    assert len({answer.json()["session"] for answer in answers}) == 1
    rows = installation.rows()
    assert (rows["session"], rows["task_run"], rows["job"]) == (1, 1, 1)
    with installation.container.engine.connect() as connection:
        orphans = connection.execute(
            text(
                "SELECT count(*) FROM blob_part"
                " WHERE blob_id NOT IN (SELECT trace_blob FROM session)"
            )
        ).scalar_one()
    assert orphans == 0


def test_different_bodies_at_the_same_time_are_numbered_without_gaps(
    installation: Installation,
) -> None:
    def post(number: int) -> int:
        answer = installation.post(params=bodies.SIZES | {"run_id": str(number)})
        assert answer.status_code == 202
        sequence: int = answer.json()["number"]
        return sequence

    with concurrent.futures.ThreadPoolExecutor(8) as senders:
        numbers = list(senders.map(post, range(12)))
    assert sorted(numbers) == list(range(1, 13))


@pytest.mark.parametrize("job", ["a b", "größe", "50%", "a.b-c_d", "x" * 200])
def test_a_job_may_have_any_printable_name(client: httpx.Client, job: str) -> None:
    answer = client.post(
        f"/api/v1/jobs/{_quoted(job)}/sessions", content=bodies.parquet(), params=bodies.SIZES
    )
    assert answer.status_code == 202
    assert answer.json()["job"] == job
    listed = client.get("/api/v1/sessions", params={"job": job}).json()["sessions"]
    assert [session["job"] for session in listed] == [job]


def _quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())
