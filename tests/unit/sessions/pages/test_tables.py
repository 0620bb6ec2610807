"""The advice for a slow tensor-parallel rank on the page of a session."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.mitigation.tensor.advice import Problem, advise
from app.analysis.mitigation.tensor.group import Group
from app.analysis.mitigation.tensor.session_advice import GroupAdvice, TensorAdvice
from app.analysis.report.document import Report
from app.sessions.pages.exports import tensor_methods_csv, tensor_ranks_csv
from app.sessions.pages.tables import SessionTensor, session_tensor

SLOW = np.array([1.0, 1.0, 4.0, 1.0])


def region(report: Report, times: np.ndarray, *, known: bool = True) -> SessionTensor | None:
    advice = advise(Problem(Group(times, times, 1000), accuracy_budget=0.25))
    group = GroupAdvice((1, 0), (4, 5, 6, 7), known, advice)
    hosts = {6: "node-6"}
    return session_tensor(
        replace(report, hosts=hosts, tensor=TensorAdvice((group, group), 0.8, 0.2))
    )


def test_each_rank_has_its_times_and_its_columns(healthy: Report) -> None:
    found = region(healthy, SLOW)
    assert found is not None
    assert found.title == "Taking work off rank 6 would save 20.0\u00a0% of every step"
    slow = found.ranks[2]
    assert (slow.rank, slow.where, slow.over, slow.slow) == (6, "node-6", "4.00×", True)
    bar = slow.columns
    assert (bar.kept, bar.resized, bar.migrated) == ("250", "250", "−500")
    assert [row.columns.migrated for row in found.ranks[:2]] == ["+167", "+167"]
    assert bar.kept_width + bar.resized_width + bar.given_width == pytest.approx(100 / 1.167, 1e-2)
    assert "1 other group would be planned alike." in found.remarks


def test_shares_are_shown_if_the_number_of_columns_is_unknown(healthy: Report) -> None:
    found = region(healthy, SLOW, known=False)
    assert found is not None
    assert found.ranks[2].columns.resized == "25.0\u00a0%"
    assert "tensor_columns" in found.remarks


def test_methods_are_ranked_with_the_chosen_one_marked(healthy: Report) -> None:
    found = region(healthy, SLOW)
    assert found is not None
    assert [row.name for row in found.methods if row.own] == ["SEMI, resize and migrate"]
    beyond = [row.beyond for row in found.methods]
    assert beyond == sorted(beyond)
    assert any(beyond)


def test_nothing_is_shown_where_nothing_is_to_be_shed(healthy: Report) -> None:
    assert session_tensor(healthy) is None
    assert region(healthy, np.ones(4)) is None


def test_the_files_have_every_rank_and_every_method(healthy: Report) -> None:
    advice = advise(Problem(Group(SLOW, SLOW, 1000), accuracy_budget=0.25))
    group = GroupAdvice((1, 0), (4, 5, 6, 7), columns_known=True, advice=advice)
    report = replace(healthy, hosts={6: "node-6"}, tensor=TensorAdvice((group,), 0.8, 0.2))
    _, *ranks = tensor_ranks_csv(report).text().splitlines()
    assert ranks[2].startswith("1,0,6,node-6,4.0,")
    _, *methods = tensor_methods_csv(report).text().splitlines()
    assert len(methods) == len(advice.alternatives)
