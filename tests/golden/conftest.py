"""The published traces and results, from the folder that PACELINE_REFERENCE_DATA names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.analysis.report.build import Analysis, analyze
from app.analysis.report.document import Report
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import Trace

PUBLIC_ADDRESS = "https://github.com/ByteDance-Seed/StragglerAnalysis"


@dataclass(frozen=True, slots=True)
class Published:
    """A published trace with the results of the published analyzer and ours."""

    name: str
    trace: Trace
    analysis: Analysis
    result: Mapping[str, Any]
    last_stage: Mapping[str, float]
    worst_workers: Mapping[str, float]

    @property
    def report(self) -> Report:
        return self.analysis.report


@cache
def load(folder: Path, name: str) -> Published:
    # A missing file is an error, because the folder was configured.
    meta = load_metadata((folder / f"meta-{name}.yaml").read_text())
    trace = decode(folder / f"trace-{name}.parquet", meta, limits=Limits()).trace
    result, last_stage, worst_workers = (
        json.loads((folder / f"{kind}-{name}.json").read_text()) for kind in ("result", "ms", "mw")
    )
    return Published(name, trace, analyze(trace), result, last_stage, worst_workers)


@pytest.fixture(scope="session", params=["AR", "ST"])
def published(request: pytest.FixtureRequest) -> Published:
    folder = os.environ.get("PACELINE_REFERENCE_DATA")
    if not folder:
        reason = f"PACELINE_REFERENCE_DATA is not set; the data is at {PUBLIC_ADDRESS}"
        if os.environ.get("PACELINE_REQUIRE_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)
    return load(Path(folder).resolve(), request.param)
