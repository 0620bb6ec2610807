"""Reports of real analyses of synthetic sessions."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes


@cache
def _slow_worker() -> str:
    job = JobModel(Sizes(dp=3, pp=4, tp=2), microbatches=6, steps=12)
    return json.dumps(analyze(synthesize(job, [SlowWorker((1, 2), 2.0)], seed=4).trace).document)


@cache
def _healthy() -> str:
    job = JobModel(Sizes(dp=2, pp=2), microbatches=6, steps=12)
    return json.dumps(analyze(synthesize(job, seed=4).trace).document)


@cache
def _distrusted() -> str:
    return json.dumps(analyze(SCENARIOS["data-loading"].synthesize(0).trace).document)


@pytest.fixture
def slow_worker() -> dict[str, Any]:
    """Return the report of 3 × 4 workers of which (1, 2) is twice as slow as its peers."""
    document: dict[str, Any] = json.loads(_slow_worker())
    return document


@pytest.fixture
def healthy() -> dict[str, Any]:
    """Return the report of a session without stragglers."""
    document: dict[str, Any] = json.loads(_healthy())
    return document


@pytest.fixture
def distrusted() -> dict[str, Any]:
    """Return the report of a session whose replay is off."""
    document: dict[str, Any] = json.loads(_distrusted())
    return document
