"""Reports of real analyses, and valid variations of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from app.analysis.json_text import to_json
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace
from app.sessions.models.reports import REPORT

T = TypeVar("T")


@cache
def slow_worker() -> Report:
    """Return the report of 3 × 4 workers of which (1, 2) computes half as fast as its peers."""
    job = JobModel(Sizes(dp=3, pp=4, tp=2), microbatches=6, steps=12)
    return analyze(synthesize(job, [SlowWorker((1, 2), 2.0)], seed=4).trace).report


@cache
def healthy() -> Report:
    """Return the report of a session without stragglers."""
    job = JobModel(Sizes(dp=2, pp=2), microbatches=6, steps=12)
    return analyze(synthesize(job, seed=4).trace).report


@cache
def distrusted() -> Report:
    """Return the report of a session whose replay is too far off, for no cause that it names."""
    return changed(
        scenario("data-loading"),
        headline__kind="causes",
        verdict__level="none",
        verdict__sentence="Verdict on S withheld; steps wait for their data, 17 % of a step",
    )


def unexplained() -> Trace:
    """Return a session in which all ranks pause in the middle of steps, for no visible cause."""
    trace = SCENARIOS["healthy"].synthesize(0).trace
    steps, number = np.unique(trace.step, return_inverse=True)
    begins = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(begins, number, trace.start_ns)
    since = trace.start_ns - begins[number]
    stall = np.where(since > np.median(since), 800_000_000, 0).astype(np.int64)
    return replace(trace, start_ns=trace.start_ns + stall)


@cache
def scenario(name: str) -> Report:
    """Return the report of a scenario of the synthesizer."""
    return analyze(SCENARIOS[name].synthesize(0).trace).report


def changed(report: Report, **members: object) -> Report:
    """Return a report with changed members; ``a__b`` names member `b` of member `a`.

    The result is validated like a stored report, so invalid values raise. Example:
    ``changed(report, by_worker__exact=((1.0, None),))``.
    """
    return REPORT.validate_json(to_json(_replaced(report, **members)))


def _replaced(value: T, **members: object) -> T:
    for path, member in members.items():
        name, _, rest = path.partition("__")
        inner = _replaced(getattr(value, name), **{rest: member}) if rest else member
        whole: Any = value
        value = replace(whole, **{name: inner})
    return value
