"""Advice computed from the recorded collectives of tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from app.analysis.json_text import plain
from app.analysis.mitigation.tensor.document import Method
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.computations import TensorParallelStraggler
from app.analysis.synthesis.synthesize import SyntheticSession
from app.sessions.models.reports import REPORT
from tests.unit.analysis.diagnosis.jobs import TENSOR, session

FACTOR = 1.6


@cache
def straggling(factor: float = FACTOR) -> SyntheticSession:
    return session(TensorParallelStraggler((2, 1), 3, factor), job=TENSOR)


@cache
def report() -> Report:
    return analyze(straggling().trace).report


def test_the_times_of_the_ranks_are_those_that_were_made() -> None:
    found = report().tensor
    assert found is not None
    group = found.groups[0]
    assert group.worker == (2, 1)
    assert group.ranks == tuple(TENSOR.traced_rank(2, 1, rank) for rank in range(4))
    assert group.advice.stragglers == (3,)
    # Transfers, which are a part of every computation, are no longer on a slow rank.
    slower = group.advice.slowest_time_s / group.advice.fastest_time_s
    assert slower == pytest.approx(1 + (FACTOR - 1) * (1 - TENSOR.costs.tensor_share), rel=0.03)


def test_the_predicted_step_is_that_of_a_job_whose_rank_is_slow_by_what_the_plan_leaves() -> None:
    found = report().tensor
    assert found is not None
    advice = found.groups[0].advice
    left_s = advice.best.predicted_time_s - advice.fastest_time_s
    left = left_s / (advice.slowest_time_s - advice.fastest_time_s)

    planned = straggling(1 + (FACTOR - 1) * left)
    assert found.predicted_step_time == pytest.approx(np.mean(planned.truth.step_times_s), rel=0.02)


def test_it_is_a_fix_next_to_the_replacement_with_a_gain_of_its_own() -> None:
    fixes = {fix.action: fix for fix in report().recommendations}
    assert fixes["replace_rank"].predicted_gain > fixes["shed_work"].predicted_gain > 0.05
    assert f"rank {TENSOR.traced_rank(2, 1, 3)}" in fixes["shed_work"].title
    assert "25\u00a0% of a rank’s columns" in fixes["shed_work"].detail


@pytest.mark.parametrize(
    ("said", "known", "columns"), [(4096, True, 4096), ("many", False, 1000), (0, False, 1000)]
)
def test_columns_are_those_of_the_metadata_or_thousandths(
    said: object, columns: int, *, known: bool
) -> None:
    trace = straggling().trace
    meta = replace(trace.meta, extra={**trace.meta.extra, "tensor_columns": said})
    found = analyze(replace(trace, meta=meta)).report.tensor
    assert found is not None
    group = found.groups[0]
    assert (group.columns_known, group.advice.columns) == (known, columns)


def test_a_report_without_such_a_cause_has_no_advice_and_no_key_for_it() -> None:
    healthy = analyze(session(job=TENSOR).trace).report
    assert healthy.tensor is None
    assert "tensor" not in plain(healthy)  # type: ignore[operator]


def test_stored_advice_is_read_as_it_was() -> None:
    stored = REPORT.validate_python(plain(report()))
    assert stored.tensor == report().tensor
    assert stored.tensor is not None
    assert stored.tensor.groups[0].advice.best.method is not Method.NONE
