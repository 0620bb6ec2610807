"""The files of a folder, sent one after the other as by a browser."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from app.installation.sweep import sweep
from tests.integration.api import bodies
from tests.unit.analysis.trace.recordings.kineto_files import BASE_NS, two_stages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.api.conftest import Installation

TAIL = 4096
Files = dict[str, bytes]


def job() -> Files:
    """Return the files of a job of two ranks, and other files of their folder."""
    return {
        "node-0/rank0.json.gz": gzip.compress(two_stages(0).body(), mtime=0),
        "node-1/rank1.json.gz": gzip.compress(two_stages(1).body(), mtime=0),
        "train.log": b"step 1 loss 2.3",
    }


def listing(files: Mapping[str, bytes]) -> bytes:
    """Return a browser's description of a folder."""
    said = [
        {"name": name, "size": len(body), "head": min(len(body), 65_536), "tail": 0}
        for name, body in files.items()
    ]
    for one, body in zip(said, files.values(), strict=True):
        one["tail"] = min(len(body), TAIL)
    line = json.dumps({"files": said}).encode() + b"\n"
    return line + b"".join(body[:65_536] + body[-TAIL:] for body in files.values())


class Folder:
    """An upload of a folder to a job."""

    def __init__(self, installation: Installation, files: Mapping[str, bytes]) -> None:
        self.client = installation.client
        self.files = files
        answer = self.client.post("/api/v1/folders", content=listing(files))
        assert answer.status_code == 200, answer.text
        self.look = answer.json()
        self.address = f"/api/v1/jobs/job/folders/{self.look['folder']}"

    def put(self, name: str) -> Any:  # noqa: ANN401 - of httpx
        params = {"name": name}
        if self.look["ranks"]:
            params["ranks"] = self.look["ranks"]
        return self.client.put(f"{self.address}/file", content=self.files[name], params=params)

    def send(self) -> Any:  # noqa: ANN401 - of httpx
        for name in self.look["files"]:
            answer = self.put(name)
            assert answer.status_code in {200, 202}, answer.text
        return self.client.post(f"{self.address}/seal", json={"not_read": self.look["not_read"]})


def test_a_folder_is_a_session(installation: Installation) -> None:
    folder = Folder(installation, job())
    assert folder.look["files"] == ["node-0/rank0.json.gz", "node-1/rank1.json.gz"]
    assert (folder.look["title"], folder.look["ranks"]) == ("Kineto", 2)
    [left_out] = folder.look["not_read"]
    assert left_out["name"] == "train.log"

    sealed = folder.send()
    assert (sealed.status_code, sealed.json()["state"]) == (202, "queued")
    installation.analyze_all()
    session = sealed.json()["session"]
    report = installation.client.get(f"/api/v1/sessions/{session}/report").json()
    assert report["sizes"]["pp"] == 2
    assert report["coverage"]["chunks"]["sealed_by"] == "request"
    said = [one["what"] for one in report["coverage"]["unmapped"]]
    assert said[0].startswith("file that is not read, train.log: ")


def test_the_same_folder_is_the_same_session(installation: Installation) -> None:
    first = Folder(installation, job())
    assert installation.client.get(first.address).json()["session"] is None
    session = first.put("node-0/rank0.json.gz").json()["session"]
    standing = installation.client.get(first.address).json()
    assert (standing["files"], standing["sealed"]) == (["node-0/rank0.json.gz"], False)
    # The upload is interrupted and repeated.
    again = Folder(installation, dict(reversed(job().items())))
    assert again.address == first.address
    assert again.put("node-0/rank0.json.gz").status_code == 200
    assert again.send().json()["session"] == session
    assert installation.client.get(first.address).json()["sealed"]
    assert again.send().status_code == 200
    assert installation.rows()["session"] == 1
    # Another recording with the same file names is another session.
    later = job()
    file = two_stages(0)
    file.fields["baseTimeNanoseconds"] = BASE_NS + 1
    later["node-0/rank0.json.gz"] = gzip.compress(file.body(), mtime=0)
    assert Folder(installation, later).send().json()["number"] == 2


def test_a_folder_that_does_not_come_whole_is_never_judged(installation: Installation) -> None:
    folder = Folder(installation, job())
    session = folder.put("node-0/rank0.json.gz").json()["session"]
    for past, state in ((timedelta(minutes=50), "open"), (timedelta(minutes=20), "discarded")):
        with installation.container.engine.begin() as connection:
            connection.execute(
                text("UPDATE intake SET last_chunk_at = last_chunk_at - :past"), {"past": past}
            )
        sweep(installation.container)
        found = installation.client.get(f"/api/v1/sessions/{session}").json()
        assert found["state"] == state
    assert found["reason_code"] == "upload.incomplete"
    assert installation.rows() | {"job": 0} == {
        "job": 0, "session": 1, "task_run": 0, "blob_part": 0, "report": 0, "inbox": 0
    }  # fmt: skip
    again = installation.client.post(f"/api/v1/sessions/{session}/analyze")
    assert (again.status_code, again.json()["code"]) == (409, "session.trace_removed")
    # The same folder, sent again, is a new session.
    assert Folder(installation, job()).send().json()["number"] == 2


def test_a_refused_file_is_named_and_stops_no_other(installation: Installation) -> None:
    files = job() | {"node-1/rank1.json.gz": gzip.compress(two_stages(1).body()[:-300])}
    folder = Folder(installation, files)
    refused = folder.put("node-1/rank1.json.gz")
    assert (refused.status_code, refused.json()["code"]) == (422, "trace.truncated")
    assert folder.put("node-0/rank0.json.gz").status_code == 202


def test_files_of_two_starts_are_no_session(installation: Installation) -> None:
    other = two_stages(1)
    other.fields["baseTimeNanoseconds"] = BASE_NS + 600 * 10**9
    folder = Folder(installation, job() | {"node-1/rank1.json.gz": other.body()})
    session = folder.send().json()["session"]
    installation.analyze_all()
    found = installation.client.get(f"/api/v1/sessions/{session}").json()
    assert (found["state"], found["reason_code"]) == ("discarded", "trace.two_recordings")
    assert "node-1/rank1.json.gz" in found["reason"]


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"a.log": b"x"}, "file.no_trace"),
        (job() | {"trace.parquet": bodies.parquet()}, "file.mixed_formats"),
        ({}, "file.no_trace"),
    ],
)
def test_a_folder_without_a_session_is_recognized_before_it_is_sent(
    installation: Installation, files: Files, code: str
) -> None:
    answer = installation.client.post("/api/v1/folders", content=listing(files))
    assert (answer.status_code, answer.json()["code"]) == (422, code)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json\n",
        b'{"files": [{"name": "a", "size": 1, "head": -1, "tail": 0}]}\n',
        b'{"files": [{"name": "a", "size": 9, "head": 9, "tail": 0}]}\nshort',
    ],
)
def test_a_listing_that_is_none_is_refused(installation: Installation, body: bytes) -> None:
    answer = installation.client.post("/api/v1/folders", content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "folder.malformed")


def test_a_folder_is_named_by_its_digest(installation: Installation) -> None:
    for folder in ("x", "A" * 64, "f" * 63):
        address = f"/api/v1/jobs/job/folders/{folder}"
        assert installation.client.get(address).json()["code"] == "folder.malformed"
    unknown = f"/api/v1/jobs/job/folders/{'f' * 64}"
    assert installation.client.post(f"{unknown}/seal", json={}).status_code == 404
