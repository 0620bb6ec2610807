"""The search is optimal: compared with all templates of hundreds of clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.planning.problem import compile_problem
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.search.optimal import plan_optimal
from app.errors import InfeasiblePlanError
from tests.oracles.plan_checker import faults_of_certificate, faults_of_template
from tests.oracles.plans import optimum, random_spec, tight_spec

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

OBJECTIVES = ("t_std", "t_oobleck")


@pytest.mark.parametrize("seed", range(400))
def test_optimum_is_the_best_of_all_templates(seed: int) -> None:
    spec = random_spec(seed)
    problem = compile_problem(spec)
    expected = optimum(spec)
    for position, objective in enumerate(OBJECTIVES):
        if expected is None:
            with pytest.raises(InfeasiblePlanError):
                plan_optimal(problem, objective, SearchBudget())
            continue
        plan = plan_optimal(problem, objective, SearchBudget())
        assert plan.cost_ps == expected[position]
        assert plan.certificate.closed
        assert faults_of_template(problem, plan.template) == []
        assert all(faults_of_template(problem, template) == [] for template in plan.near)


@pytest.mark.parametrize("seed", range(300))
def test_optimum_where_memory_in_flight_decides(seed: int) -> None:
    spec = tight_spec(seed)
    problem = compile_problem(spec)
    expected = optimum(spec)
    # T_oobleck requires at least as many microbatches as stages.
    for position, objective in enumerate(OBJECTIVES if spec.microbatches > 6 else ("t_std",)):
        if expected is None:
            with pytest.raises(InfeasiblePlanError):
                plan_optimal(problem, objective, SearchBudget())
            continue
        plan = plan_optimal(problem, objective, SearchBudget())
        assert plan.cost_ps == expected[position]
        assert plan.certificate.closed
        assert faults_of_template(problem, plan.template) == []


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(0, 400, 8))
def test_independent_checker_accepts_the_certificate(seed: int, objective: str) -> None:
    problem = compile_problem(random_spec(seed))
    try:
        plan = plan_optimal(problem, objective, SearchBudget())
    except InfeasiblePlanError:
        assert optimum(problem.spec) is None
        return
    assert faults_of_certificate(problem, plan.template, plan.certificate) == []


@pytest.mark.parametrize("seed", range(0, 400, 10))
def test_certificate_with_replicated_stages(seed: int) -> None:
    spec = replace(random_spec(seed), replicate=True)
    problem = compile_problem(spec)
    try:
        plan = plan_optimal(problem, "t_std", SearchBudget())
    except InfeasiblePlanError:
        assert optimum(spec) is None
        return
    assert plan.certificate.closed
    assert faults_of_template(problem, plan.template) == []
    assert faults_of_certificate(problem, plan.template, plan.certificate) == []
    plain = optimum(replace(spec, replicate=False))
    # The search with replication includes stages without replicas.
    assert plain is None or plan.cost_ps <= plain[0]
