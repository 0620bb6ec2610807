"""An export contains all data of a session, in formats that the program reads itself."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.access.audit import list_entries
from app.errors import NotFoundError
from app.platform.identity import Right
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.retention.delete import delete_session
from app.retention.export import export_job, export_project, export_session
from app.retention.models import Keep, RetentionRules
from app.retention.rules import keep_to_rules, set_rules
from app.sessions.read import report_json
from tests.integration.access.conftest import company
from tests.support.command import paceline
from tests.support.reads import read
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from app.platform.container import Container
    from tests.integration.access.conftest import Company
    from tests.support.sessions import Stored

__all__ = ["company"]

ALL = {"session.json", "meta.json", "report.json", "heatmaps.npy", "trace.parquet"}


def _analyzed(container: Container, job: str = "llm") -> Stored:
    stored = store(container, small_trace(), job=job)
    assert execute(container, LeaseKeeper(container), stored.run)
    return stored


def _files(pieces: Iterable[bytes]) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        found = {}
        for entry in tar.getmembers():
            file = tar.extractfile(entry)
            assert file is not None
            found[entry.name] = file.read()
        return found


def test_an_exported_session_is_analyzed_to_the_same_report(
    container: Container, tmp_path: Path
) -> None:
    stored = _analyzed(container)
    files = _files(export_session(container, stored.session))
    folder = "llm/attempt-1/session-1"
    assert set(files) == {f"{folder}/{name}" for name in ALL}
    assert files[f"{folder}/report.json"] == read(container, report_json, stored.session)
    assert np.load(io.BytesIO(files[f"{folder}/heatmaps.npy"])).shape[1:] == (2, 2)
    for name in ("trace.parquet", "meta.json"):
        (tmp_path / name).write_bytes(files[f"{folder}/{name}"])
    done = paceline(
        "analyze", tmp_path / "trace.parquet", "--meta", tmp_path / "meta.json", "--json"
    )
    assert done.returncode == 0, done.stderr
    again, before = json.loads(done.stdout), json.loads(files[f"{folder}/report.json"])
    for name in ("slowdown", "headline", "verdict", "causes", "step_times", "workers"):
        assert again[name] == before[name]
    assert [entry.action for entry in read(container, list_entries, 1)] == ["exported"]


def test_a_job_is_exported_with_what_is_kept_of_its_sessions(container: Container) -> None:
    first, _ = _analyzed(container), _analyzed(container)
    gone = _analyzed(container)
    _analyzed(container, "other")
    pieces = export_job(container, "llm")
    # The session is deleted while it is exported.
    delete_session(container, gone.session)
    files = _files(pieces)
    assert {name.split("/")[2] for name in files} == {"session-1", "session-2"}
    assert len(_files(export_project(container))) == 3 * len(ALL)

    set_rules(container, RetentionRules(traces=Keep(bytes=0), heatmaps=Keep(bytes=0)))
    keep_to_rules(container)
    left = {name.split("/")[3] for name in _files(export_session(container, first.session))}
    assert left == {"session.json", "meta.json", "report.json"}
    with pytest.raises(NotFoundError):
        export_session(container, gone.session)
    with pytest.raises(NotFoundError):
        export_job(container, "unknown")


def test_the_command_writes_a_whole_file_or_none(
    company: Company, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_SERVER", company.url)
    monkeypatch.setenv("PACELINE_TOKEN", company.token(Right.READ))
    stored = _analyzed(company.ours)
    out = tmp_path / "out.tar"
    done = paceline("session", "export", str(stored.session), "--out", out)
    assert (done.returncode, done.stdout) == (0, f"{out}\n")
    assert len(_files([out.read_bytes()])) == len(ALL)
    assert paceline("job", "export", "llm", "--out", out).returncode == 0
    assert paceline("project", "export", "default", "--out", out).returncode == 0
    assert len(_files([out.read_bytes()])) == len(ALL)
    none = tmp_path / "none.tar"
    # The token has no access to this project.
    assert paceline("project", "export", "other", "--out", none).returncode == 1
    done = paceline("job", "export", "unknown", "--out", none)
    assert (done.returncode, done.stderr.endswith("[not_found]\n")) == (1, True)
    assert list(tmp_path.glob("none*")) == []
