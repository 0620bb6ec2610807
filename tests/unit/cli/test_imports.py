"""The imports of `paceline analyze`, which take most of the time for a small trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes

ROOT: Final = Path(__file__).parents[3]
# Packages of the server, the compiler, and other slow imports.
UNNEEDED: Final = (
    "alembic",
    "celery",
    "fastapi",
    "httpx",
    "numba",
    "pandas",
    "psycopg",
    "pydantic",
    "pydantic_settings",
    "rich",
    "scipy",
    "statistics",
    "sqlalchemy",
    "typer",
    *(
        f"app.{subject}"
        for subject in ("access", "actions", "fixes", "hangs", "hosts", "incidents", "installation")
    ),
    *(f"app.{subject}" for subject in ("plans", "pulse", "quotas", "retention", "tensor", "web")),
    "app.platform.database",
    "app.sessions.models",
    "app.platform.validation",
    "app.sessions.recordings.archive",
    "app.platform.settings",
    "app.analysis.synthesis",
    "app.analysis.mitigation.tensor.advice",
    "app.analysis.planning.search",
    "app.analysis.report.charts",
    "app.analysis.replay.engine.compiled_replay",
    "app.analysis.trace.recordings.kineto",
    "app.analysis.trace.recordings.megascan",
    "app.analysis.trace.recordings.nsys",
    "app.analysis.trace.recordings.otlp",
    "google.protobuf",
)
_PROGRAM: Final = """
import sys
from app.cli.main import main
try:
    main()
finally:
    sys.stderr.write(" ".join(sys.modules))
"""


@pytest.mark.slow
def test_analyze_imports_only_what_the_trace_needs(tmp_path: Path) -> None:
    trace = synthesize(JobModel(sizes=Sizes(dp=2, pp=2), steps=6, microbatches=4), seed=1).trace
    (tmp_path / "trace.parquet").write_bytes(to_parquet(trace))
    (tmp_path / "meta.yaml").write_text(yaml.safe_dump(metadata_document(trace.meta)))
    files = [str(tmp_path / "trace.parquet"), "--meta", str(tmp_path / "meta.yaml")]
    command = ["analyze", *files, "--json"]
    done = subprocess.run(  # noqa: S603 - this interpreter and our own program
        [sys.executable, "-c", _PROGRAM, *command],
        check=True,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
    )
    imported = set(done.stderr.split())
    assert "app.analysis.report.build" in imported
    assert sorted(imported & set(UNNEEDED)) == []
