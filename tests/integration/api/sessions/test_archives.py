"""Archives of a folder of recordings, sent as one body."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.trace.limits import MIB
from tests.integration.api import bodies
from tests.support.command import paceline
from tests.unit.analysis.trace.recordings.kineto_files import BASE_NS, KinetoFile, two_stages
from tests.unit.sessions.recordings.archives import Entry, forms, member, tar, zipped

if TYPE_CHECKING:
    from tests.integration.api.conftest import Install, Installation

LOG = ("traces/train.log", b"step 1 loss 2.3")


def recordings() -> list[Entry]:
    """Return the files of a job of two ranks, in folders of their nodes."""
    return [
        (f"traces/node-{rank}/rank{rank}.json.gz", gzip.compress(two_stages(rank).body()))
        for rank in range(2)
    ]


def report_of(installation: Installation, session: str) -> dict[str, Any]:
    """Analyze a sent session and return its report."""
    installation.analyze_all()
    report: dict[str, Any] = installation.client.get(f"/api/v1/sessions/{session}/report").json()
    return report


@pytest.mark.parametrize("name", sorted(forms([])))
def test_an_archive_is_a_session(installation: Installation, name: str) -> None:
    body = forms([*recordings(), LOG])[name]
    answer = installation.post(body, params={})
    received = answer.json()

    assert answer.status_code == 202, received
    [left_out] = received["not_read"]
    assert left_out["name"] == "traces/train.log"
    assert "it begins with 'step 1 loss 2.3'" in left_out["why"]
    session = installation.client.get(f"/api/v1/sessions/{received['session']}").json()
    assert (session["trace_format"], session["body_bytes"]) == ("kineto", len(body))
    report = report_of(installation, received["session"])
    assert report["sizes"]["pp"] == 2
    assert report["verdict"]["sentence"]
    said = [one["what"] for one in report["coverage"]["unmapped"]]
    assert said[0].startswith("file that is not read, traces/train.log: ")

    again = installation.post(body, params={})
    assert (again.status_code, again.json()["session"]) == (200, received["session"])
    assert installation.rows()["session"] == 1


def test_the_report_of_an_archive_is_that_of_the_command_line(
    installation: Installation, tmp_path: Path
) -> None:
    path = tmp_path / "traces.tar.gz"
    path.write_bytes(forms(recordings())["traces.tar.gz"])
    sent = subprocess.run(  # noqa: S603 - as users do
        [
            *("curl", "-sS", "--fail-with-body", "--data-binary", f"@{path}"),
            f"{installation.url}/api/v1/jobs/curl/sessions",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"state":"queued"' in sent.stdout
    [session] = installation.client.get("/api/v1/sessions").json()["sessions"]
    report = report_of(installation, session["id"])
    done = paceline("upload", path, "--job", "command", "--server", installation.url)
    assert done.returncode == 0, done.stderr
    other = report_of(installation, done.stdout.strip().rpartition("/")[2])
    for key in ("sizes", "steps", "slowdown", "headline", "verdict", "by_worker"):
        assert report[key] == other[key], key


@pytest.mark.parametrize(
    "content_type",
    [
        *("application/gzip", "application/x-tar", "application/x-gtar"),
        *("application/octet-stream", "application/x-www-form-urlencoded"),
    ],
)
def test_an_archive_is_recognized_by_its_bytes(
    installation: Installation, content_type: str
) -> None:
    body = forms(recordings())["traces.tar.gz"]
    answer = installation.post(body, params={}, headers={"Content-Type": content_type})
    assert answer.status_code == 202


def test_a_zip_comes_in_a_part_of_a_form_as_well(installation: Installation) -> None:
    part = ("traces.zip", forms(recordings())["traces.zip"], "application/zip")
    answer = installation.client.post("/api/v1/jobs/job/sessions", files={"trace": part})
    assert answer.status_code == 202


def test_metadata_are_those_of_the_archive_unless_others_are_sent(
    installation: Installation,
) -> None:
    files = [("run/trace.parquet", bodies.parquet()), ("run/meta.yaml", bodies.META.encode())]
    inside = installation.post(zipped(files), params={})
    assert inside.status_code == 202, inside.json()
    sent = installation.post(zipped(files[:1]))
    assert sent.status_code == 202, sent.json()

    wrong = installation.post(zipped([files[0], ("run/meta.yaml", b"dp: [1")]), params={})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "metadata.malformed")
    assert wrong.json()["detail"].startswith("run/meta.yaml: ")


def other_start() -> Entry:
    file = two_stages(1)
    file.fields["baseTimeNanoseconds"] = BASE_NS + 600 * 10**9
    return ("traces/rank1.json", file.body())


def silent() -> Entry:
    file = KinetoFile(rank=1, world=2, groups={"default_pg": [0, 1]})
    return ("traces/rank1.json", file.body()[:-40])


REFUSED = {
    "bomb": (zipped([("rank0.json", bytes(40 * MIB))]), 422, "archive.bomb"),
    "unsafe": (tar([("../rank0.json", b"{}")]), 422, "archive.unsafe_name"),
    "link": (tar([member("rank0.json", b"2", "/etc/passwd")]), 422, "archive.link"),
    "cut": (forms(recordings())["traces.tar.gz"][:-200], 422, "archive.truncated"),
    "xz": (b"\xfd7zXZ\x00" + bytes(600), 415, "archive.unsupported"),
    "nothing": (zipped([LOG]), 422, "file.no_trace"),
    "mixed": (
        zipped([*recordings(), ("trace.parquet", bodies.parquet())]),
        422,
        "file.mixed_formats",
    ),
    "starts": (zipped([recordings()[0], other_start()]), 422, "trace.two_recordings"),
    "file": (zipped([silent()]), 422, "trace.truncated"),
    "nested": (zipped([("traces.tar", tar(recordings()))]), 422, "file.no_trace"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_archive_without_a_session_is_refused_and_leaves_nothing(
    installation: Installation, name: str
) -> None:
    body, status, code = REFUSED[name]
    before = installation.rows()
    answer = installation.post(body, params={})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert installation.rows() == before
    if name in {"unsafe", "link"}:
        [fault] = problem["faults"]
        assert fault["row"] == 0
        assert fault["file"].endswith("rank0.json")
    if name == "nested":
        assert problem["faults"][0]["message"].startswith("Not read: it is an archive")


def test_the_limits_are_those_of_all_files_together(install: Install) -> None:
    rows = len(bodies.trace()) // 2
    half = bodies.written(bodies.table().slice(0, rows))
    rest = bodies.written(bodies.table().slice(rows))
    body = zipped([("a.parquet", half), ("b.parquet", rest)])
    with install(max_rows=rows + 1) as small:
        answer = small.post(body)
        assert (answer.status_code, answer.json()["code"]) == (413, "body.too_many_rows")
    # The archive unpacks to few bytes, but its files decompress to many.
    files = [(f"rank{rank}.json.gz", gzip.compress(b"{" + b" " * 3 * MIB)) for rank in range(4)]
    with install(max_decompressed_bytes=10 * MIB, max_body_bytes=9 * MIB) as small:
        first = two_stages(0).body()
        padded = [
            (name, gzip.compress(first[:1] + b" " * 3 * MIB + first[1:])) for name, _ in files
        ]
        answer = small.post(zipped(padded), params={})
        assert (answer.status_code, answer.json()["code"]) == (413, "body.too_large")
        assert "together" in answer.json()["detail"]
