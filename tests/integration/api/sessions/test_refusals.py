"""Refused sessions: a stable code, the place of the fault, and nothing is stored."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import text

from tests.integration.api import bodies
from tests.integration.api.conftest import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx
    from httpx._types import RequestFiles

    from tests.integration.api.conftest import Install, Installation

NOTHING = dict.fromkeys(TABLES, 0)


def spooled_files(installation: Installation) -> list[str]:
    """Return files below the spool that exist, or that this process has open."""
    spool = installation.container.settings.data_dir / "spool"
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            opened.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [str(path) for path in spool.iterdir()] + [
        name for name in opened if name.startswith(str(spool))
    ]


def refused(installation: Installation, answer: httpx.Response, status: int, code: str) -> Any:  # noqa: ANN401 - JSON
    """Check the properties of every refusal; return the first fault."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), answer.text
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["type"] == f"/api/docs#problem-{code}"
    assert installation.rows() == NOTHING
    assert spooled_files(installation) == []
    assert installation.metric("paceline_ingest_refusals_total", code=code) == 1
    assert installation.metric("paceline_ingest_spooled_bytes") == 0
    return problem["faults"][0] if problem["faults"] else None


ROW = 77


@pytest.mark.parametrize(
    ("make", "code", "fault"),
    [
        (lambda: b"certainly no trace", "trace.unknown_format", None),
        (lambda: b"", "trace.empty", None),
        (lambda: bodies.parquet()[:-40], "trace.truncated", None),
        (lambda: bodies.parquet(dur_ns=None), "trace.missing_column", {"column": "dur_ns"}),
        (
            lambda: bodies.changed("rank", ROW, 6),
            "trace.rank_out_of_range",
            {"row": ROW, "column": "rank"},
        ),
        (
            lambda: bodies.changed("pp", ROW, 2),
            "trace.pp_out_of_range",
            {"row": ROW, "column": "pp"},
        ),
        (lambda: bodies.written(bodies.table().slice(0, 0)), "trace.no_rows", None),
    ],
    ids=[
        "unknown", "empty", "truncated", "missing-column", "rank", "stage", "no-rows",
    ],
)  # fmt: skip
def test_a_body_is_refused_with_the_place_of_its_fault(
    installation: Installation,
    make: Callable[[], bytes],
    code: str,
    fault: dict[str, object] | None,
) -> None:
    status = 415 if code == "trace.unknown_format" else 422
    first = refused(installation, installation.post(make()), status, code)
    if fault is not None:
        assert fault.items() <= first.items()


@pytest.mark.parametrize(
    ("value", "code"),
    [(np.nan, "trace.not_finite"), (np.inf, "trace.not_finite")],
)
def test_a_duration_that_is_no_time_is_refused(
    installation: Installation, value: float, code: str
) -> None:
    start, duration = bodies.published_times()
    duration[ROW] = value
    answer = installation.post(bodies.published(start, duration))
    first = refused(installation, answer, 422, code)
    assert (first["row"], first["column"]) == (ROW, "duration")


def test_absolute_float_times_are_refused(installation: Installation) -> None:
    start, duration = bodies.published_times()
    answer = installation.post(bodies.published(start + np.float32(1.7e9), duration))
    first = refused(installation, answer, 422, "trace.absolute_float_time")
    assert (first["row"], first["column"]) == (0, "start_ts")


def test_corrupt_bytes_are_refused(installation: Installation) -> None:
    body = bytearray(bodies.parquet())
    body[200:400] = os.urandom(200)
    answer = installation.post(bytes(body))
    assert answer.status_code == 422
    refused(installation, answer, 422, answer.json()["code"])
    assert answer.json()["code"].startswith("trace.")


def test_an_operation_that_is_there_twice_counts_once(installation: Installation) -> None:
    table = bodies.table()
    doubled = pa.concat_tables([table, table.slice(ROW, 1)])
    answer = installation.post(bodies.written(doubled))
    assert answer.status_code == 202
    installation.analyze_all()
    report = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}/report").json()
    assert report["coverage"]["copies"] == 1


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"dp": 3, "pp": 2, "world": 7}, "metadata.world_mismatch"),
        ({"dp": 0, "pp": 2}, "metadata.bad_size"),
        ({"dp": 3}, "metadata.missing_size"),
        ({}, "metadata.missing"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    installation: Installation, params: dict[str, int], code: str
) -> None:
    refused(installation, installation.post(params=params), 422, code)


def test_metadata_that_comes_twice_is_refused(installation: Installation) -> None:
    answer = installation.client.post(
        "/api/v1/jobs/job/sessions",
        params=bodies.SIZES,
        files={"meta": (None, bodies.META), "trace": ("t", bodies.parquet())},
    )
    refused(installation, answer, 422, "metadata.conflict")


def test_metadata_that_is_no_yaml_is_refused_with_its_line(installation: Installation) -> None:
    answer = installation.client.post(
        "/api/v1/jobs/job/sessions",
        files={"meta": (None, "dp: 3\npp: [2\n"), "trace": ("t", bodies.parquet())},
    )
    first = refused(installation, answer, 422, "metadata.malformed")
    assert first["line"] == 3


def test_a_query_parameter_that_is_unknown_is_refused(installation: Installation) -> None:
    answer = installation.post(params=bodies.SIZES | {"ddp": 3})
    assert answer.status_code == 422
    assert answer.json()["code"] == "request.invalid"
    assert answer.json()["faults"][0]["column"] == "ddp"
    assert installation.rows() == NOTHING


@pytest.mark.parametrize(
    ("files", "faulty"),
    [
        ({"meta": (None, bodies.META)}, "trace"),
        ({"meta": (None, bodies.META), "trace": ("t", b"x"), "more": ("m", b"y")}, "more"),
        ([("trace", ("t", b"x")), ("trace", ("t", b"y"))], "trace"),
    ],
    ids=["no-trace", "unknown-part", "twice"],
)
def test_parts_that_are_not_those_there_are_are_refused(
    installation: Installation, files: RequestFiles, faulty: str
) -> None:
    answer = installation.client.post("/api/v1/jobs/job/sessions", files=files)
    refused(installation, answer, 400, "multipart.invalid")
    assert faulty in answer.text


@pytest.mark.parametrize(
    ("content", "parameter"),
    [
        (b"--b\r\nContent-Disposition: form-data; name=trace\r\n\r\nPAR1", "; boundary=b"),
        (b"no boundary in here", "; boundary=b"),
        (b"--b\r\n\r\n\r\n--b--", ""),
        (b"--b\r\nX: " + b"y" * 5000, "; boundary=b"),
    ],
    ids=["cut-off", "not-multipart", "no-boundary", "long-header"],
)  # fmt: skip
def test_a_malformed_multipart_body_is_refused(
    installation: Installation, content: bytes, parameter: str
) -> None:
    answer = installation.post(content, headers={"Content-Type": f"multipart/form-data{parameter}"})
    refused(installation, answer, 400, "multipart.invalid")


def test_a_content_type_that_is_none_of_ours_is_refused_unread(installation: Installation) -> None:
    answer = installation.post(headers={"Content-Type": "text/html"})
    refused(installation, answer, 415, "trace.unknown_format")
    assert installation.metric("paceline_ingest_bytes_total") == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Encoding": "br"},
        {"Content-Encoding": "gzip", "Content-Type": bodies.PARQUET},
        {"Content-Encoding": "gzip", "Content-Type": bodies.NDJSON},
    ],
    ids=["unknown", "parquet", "not-what-it-says"],
)
def test_a_content_encoding_that_cannot_be_is_refused(
    installation: Installation, headers: dict[str, str]
) -> None:
    refused(installation, installation.post(headers=headers), 415, "encoding.unsupported")


@pytest.mark.parametrize("job", ["%20a", "%07", "..", "x" * 201, "ll\u0430ma", "cafe\u0301"])
def test_a_name_that_no_job_can_have_is_refused(installation: Installation, job: str) -> None:
    if job == "..":
        job = "%2e%2e"
    answer = installation.post(job=job)
    if answer.json()["code"] == "http.not_found":
        # The client resolves dots in a path before it sends the request.
        assert job == "%2e%2e"
        return
    refused(installation, answer, 422, "job.invalid_name")


def test_a_job_that_exists_keeps_a_name_that_looks_like_another(
    installation: Installation,
) -> None:
    name = "ll\u0430ma"
    with installation.container.engine.begin() as connection:
        connection.execute(
            text("INSERT INTO job (project_id, name) VALUES (1, :name)"), {"name": name}
        )

    assert installation.post(job=name).status_code == 202
    answer = installation.post(job="m\u043edel")
    assert answer.json()["detail"] == (
        "The name m\u043edel mixes Latin and Cyrillic letters, which look alike: \u043e (U+043E). "
        "Give the job another name."
    )


def test_the_refusal_of_a_name_with_a_slash_contains_the_rule_of_names(
    installation: Installation,
) -> None:
    answer = installation.post(job="team%2Fllama")
    assert (answer.status_code, answer.json()["code"]) == (422, "job.invalid_name")
    assert answer.json()["detail"] == (
        "A job's name has 1 to 200 printable characters of any script, without a slash and without "
        "blanks around them; this one has %2F."
    )


def test_a_decompression_bomb_is_refused(install: Install) -> None:
    with install(max_decompressed_bytes=4 * 1024 * 1024) as installation:
        bomb = gzip.compress(b'{"dp":1,"pp":1}\n' + b" " * (64 * 1024 * 1024))
        assert len(bomb) < 100_000
        answer = installation.post(bomb, params={}, headers={"Content-Type": bodies.NDJSON})
        refused(installation, answer, 413, answer.json()["code"])
        assert answer.json()["code"].startswith("body.")


def test_more_rows_than_may_be_are_refused(install: Install) -> None:
    with install(max_rows=100) as installation:
        refused(installation, installation.post(), 413, "body.too_many_rows")


def test_a_body_that_announces_too_much_is_refused_before_it_comes(install: Install) -> None:
    with install(max_body_bytes=1000) as installation:
        refused(installation, installation.post(), 413, "body.too_large")
        assert installation.metric("paceline_ingest_bytes_total") == 0


def test_a_body_that_does_not_say_its_length_is_counted(install: Install) -> None:
    body = bodies.parquet()
    with install(max_body_bytes=1000) as installation:
        # httpx finds the length of a file, and none of an iterator.
        answer = installation.post(iter([body]))  # type: ignore[arg-type]
        assert "content-length" not in answer.request.headers
        refused(installation, answer, 413, "body.too_large")


def test_a_refused_body_does_not_hinder_the_next(installation: Installation) -> None:
    assert installation.post(b"certainly no trace").status_code == 415
    assert installation.post().status_code == 202
