"""The search in problems that would need more memory than its limit."""

from __future__ import annotations

import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.search import passes
from app.analysis.planning.template import evaluate
from app.errors import InfeasiblePlanError
from benchmarks.support.clusters import uniform_example
from tests.oracles.plan_checker import faults_of_template
from tests.oracles.plans import tight_spec


@pytest.mark.parametrize(("seed", "cells"), [(24, 16), (43, 30), (122, 70), (132, 54)])
def test_a_template_that_fits_for_certain_comes_with_its_gap(
    seed: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tight_spec(seed)
    best = plan(spec, objective="t_std", compare=False)
    assert best.optimal
    monkeypatch.setattr(passes, "MOST_CELLS", cells)
    found = plan(spec, objective="t_std", compare=False)
    assert not found.optimal
    assert faults_of_template(found.problem, found.template) == []
    assert found.certificate is not None
    cost = evaluate(best.problem, best.template).t_std
    assert found.certificate.lower_bound_ps <= cost <= found.certificate.upper_bound_ps


def test_wide_intervals_are_halved_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = uniform_example("Ex3")
    best = plan(spec, objective="t_std", compare=False)
    assert best.certificate is not None
    for cells in (2_000, 3_000, 5_000, 8_000, 15_000):
        monkeypatch.setattr(passes, "MOST_CELLS", cells)
        try:
            found = plan(spec, objective="t_std", compare=False)
        except InfeasiblePlanError as error:
            assert error.stable_code == "plan.too_large"  # noqa: PT017 - either is right
            continue
        assert found.optimal
        assert found.certificate is not None
        assert found.certificate.upper_bound_ps == best.certificate.upper_bound_ps


def test_too_large_a_search_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MOST_CELLS", 10)
    with pytest.raises(InfeasiblePlanError) as caught:
        plan(uniform_example("Ex3"), compare=False)
    assert caught.value.stable_code == "plan.too_large"
