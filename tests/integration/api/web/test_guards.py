"""Guards of requests by host, origin and proxy, and the headers of every answer."""

from __future__ import annotations

import functools
import gzip
import re
import socket
import uuid
from typing import TYPE_CHECKING

import brotli
import pytest
import zstandard
from sqlalchemy import insert, select

from app.sessions.models.tables import Session
from app.web.guards import SECURITY_HEADERS
from tests.integration.api import bodies
from tests.integration.api.sessions.test_refusals import NOTHING
from tests.support.waiting import LIMIT_S

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Install, Installation

JOBS = "/api/v1/jobs"


def zstd_decompress(body: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(body)


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8765", "LOCALHOST", "127.0.0.1:1", "127.8.9.10", "[::1]", "[::1]:80"],
)
def test_loopback_names_are_answered(client: httpx.Client, host: str) -> None:
    assert client.get(JOBS, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "localhost.rebound.example",
        "127.0.0.1.rebound.example",
        "10.0.0.1",
        "0.0.0.0",  # noqa: S104 - not listened on
        "user@localhost",
        "localhost:port",
        "localhost/x",
        "[::1",
        "",
    ],
)
def test_other_names_are_refused(client: httpx.Client, host: str) -> None:
    answer = client.get(JOBS, headers={"Host": host})
    assert answer.status_code == 421
    assert answer.json()["code"] == "host.refused"


# Nothing is ready without a worker.
@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/readyz", 503)])
def test_load_balancers_read_health_by_address_and_without_a_host(
    installation: Installation, path: str, status: int
) -> None:
    assert installation.client.get(path, headers={"Host": "10.0.0.1"}).status_code == status
    assert installation.client.get("/nowhere", headers={"Host": "10.0.0.1"}).status_code == 421
    address = installation.client.base_url
    with socket.create_connection((address.host, address.port or 80), timeout=LIMIT_S) as plain:
        plain.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert plain.recv(64).startswith(f"HTTP/1.1 {status}".encode())


def test_names_that_the_operator_lists_are_answered(install: Install) -> None:
    with install(allowed_hosts=("paceline.example",)) as installation:
        for host, status in (("Paceline.example:8765", 200), ("other.example", 421)):
            answer = installation.client.get(JOBS, headers={"Host": host})
            assert answer.status_code == status


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded",
        "Via",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Port",
        "X-Forwarded-Proto",
        "X-Forwarded-Server",
        "X-Real-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
        "X-Client-IP",
    ],
)
def test_forwarded_requests_are_refused(client: httpx.Client, header: str) -> None:
    answer = client.get(JOBS, headers={header: "10.0.0.1"})
    assert answer.status_code == 403
    assert answer.json()["code"] == "host.forwarded"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://rebound.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://rebound.example"},
    ],
)
def test_a_page_of_another_origin_cannot_send(
    installation: Installation, headers: dict[str, str]
) -> None:
    answer = installation.post(headers=headers)
    assert answer.status_code == 403
    assert answer.json()["code"] == "csrf.cross_site"
    assert installation.rows() == NOTHING


def test_a_page_of_this_server_can_send(installation: Installation) -> None:
    origin = {"Sec-Fetch-Site": "same-origin", "Origin": installation.url}
    assert installation.post(headers=origin).status_code == 202
    assert installation.post(headers={"Origin": installation.url}).status_code == 200


def test_reading_from_elsewhere_is_not_an_unsafe_method(client: httpx.Client) -> None:
    # A browser sends these headers when it follows a link in a chat.
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://chat.example"}
    assert client.get(JOBS, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", JOBS, {}, 200),
        ("GET", "/api/docs", {}, 200),
        ("GET", "/nowhere", {}, 404),
        ("GET", JOBS, {"Host": "rebound.example"}, 421),
        ("POST", "/api/v1/jobs/a/sessions", {"Origin": "null"}, 403),
    ],
)
def test_every_answer_has_the_security_headers(
    client: httpx.Client, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == status
    assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
    policy = answer.headers["content-security-policy"]
    for directive in (
        "script-src 'self'",
        "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "frame-ancestors 'none'",
    ):
        assert directive in policy.split("; ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"external_url": "http://paceline.example"}, None),
        ({"external_url": "https://paceline.example"}, "max-age=31536000"),
        ({"external_url": "https://paceline.example", "hsts_max_age_s": 0}, "max-age=0"),
    ],
)
def test_browsers_come_over_tls_alone_where_people_come_over_tls(
    install: Install, changes: dict[str, object], said: str | None
) -> None:
    with install(**changes) as installed:
        for path in (JOBS, "/", "/nothing-here", "/api/v1/nothing-here"):
            answer = installed.client.get(path)
            assert answer.headers.get("strict-transport-security") == said, path


def test_answers_are_compressed_as_the_client_takes_them(installation: Installation) -> None:
    client = installation.client
    plain = client.get("/api/openapi.json", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for accepted, coding, decompress in (
        ("gzip, deflate, br, zstd", "zstd", zstd_decompress),
        ("gzip, br", "br", brotli.decompress),
        ("gzip, br;q=0", "gzip", gzip.decompress),
        ("gzip", "gzip", gzip.decompress),
    ):
        with client.stream(
            "GET", "/api/openapi.json", headers={"Accept-Encoding": accepted}
        ) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == coding
        assert "accept-encoding" in answer.headers["vary"].lower()
        assert decompress(raw) == plain.content
        assert len(raw) < len(plain.content) / 2


def test_a_small_answer_is_not_compressed(client: httpx.Client) -> None:
    assert "content-encoding" not in client.get(JOBS).headers


def test_a_large_answer_survives_compression(installation: Installation) -> None:
    installation.post()
    with installation.container.uow() as tx:
        [first] = tx.session.connection().execute(select(Session.__table__)).mappings()
        copies = [
            dict(first) | {"id": uuid.uuid4(), "number": number, "content_sha256": None}
            for number in range(2, 301)
        ]
        tx.session.execute(insert(Session), copies)
    answer = installation.client.get("/api/v1/sessions", params={"limit": 300})
    assert answer.headers["content-encoding"] == "zstd"
    assert len(answer.content) > 128 * 1024
    assert len(answer.json()["sessions"]) == 300


def test_problems_and_tables_are_compressed_and_static_files_only_once(
    installation: Installation,
) -> None:
    session = installation.post().json()["session"]
    installation.analyze_all()
    page = installation.client.get("/").text
    style = re.findall(r'"(/static/[^"]+\.css)"', page)[0]
    client = installation.client
    client.headers["Accept-Encoding"] = "br, zstd"
    header = b'{"schema": "paceline.trace/1", "meta": {"dp": 1, "pp": 1}}\n'
    for answer, coding in (
        (client.get(f"/sessions/{session}/workers.csv"), "zstd"),
        (installation.post(header + b"{}\n" * 20, params={}), "zstd"),
        (client.get(style), "br"),
    ):
        assert answer.headers.get("content-encoding") == coding, answer.url
    assert len(client.get(style).content) > 1000


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.1", ("Content-Length: 4", "Transfer-Encoding: chunked")),
        ("1.1", ("Transfer-Encoding: chunked", "Content-Length: 0")),
        ("1.0", ("Transfer-Encoding: chunked",)),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/plans", "/healthz", "/nowhere", "/p/default/"])
def test_a_body_with_two_lengths_is_refused_and_its_rest_is_no_request(
    client: httpx.Client, path: str, version: str, headers: tuple[str, ...]
) -> None:
    lines = (f"POST {path} HTTP/{version}", f"Host: {client.base_url.netloc.decode()}", *headers)
    head = "\r\n".join((*lines, "", "")).encode()
    hidden = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    address = (client.base_url.host, client.base_url.port or 80)
    with socket.create_connection(address, timeout=LIMIT_S) as connection:
        connection.sendall(head + hidden)
        answers = b"".join(iter(functools.partial(connection.recv, 65536), b""))
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"body.ambiguous_length"' in answers
    assert answers.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "address",
    [
        "/api/v1/jobs/caf%e9/sessions?dp=3&pp=2",
        "/api/v1/jobs/%ed%a0%80/sessions?dp=3&pp=2",
        "/api/v1/jobs/job/sessions?dp=3&pp=2&run_id=%ff",
        "/p/default/api/v1/jobs/caf%e9/sessions?dp=3&pp=2",
    ],
    ids=["latin-1", "surrogate", "query", "project"],
)
def test_an_address_that_is_not_utf8_is_refused(installation: Installation, address: str) -> None:
    answer = installation.client.post(address, content=bodies.parquet())
    assert (answer.status_code, answer.json()["code"]) == (400, "address.not_utf8")
    assert installation.rows()["job"] == 0


def test_a_name_in_any_script_is_a_name(installation: Installation) -> None:
    assert installation.post(job="caf%C3%A9-%E6%BC%A2").status_code == 202
    assert installation.client.get("/api/v1/sessions").json()["sessions"][0]["job"] == "café-漢"
