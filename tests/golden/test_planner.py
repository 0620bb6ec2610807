"""Reference plans for the profile of GPT2-XL that Ditto's authors published."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.problem import PS_PER_MS
from app.analysis.planning.template import evaluate
from app.errors import InfeasiblePlanError
from benchmarks.support.clusters import CLUSTERS, real_example, reference_profile
from tests.conftest import skip_or_fail
from tests.oracles.plan_checker import faults_of_certificate, faults_of_template

EXACT = 1e-6


@pytest.fixture(scope="module")
def folder() -> Path:
    found = reference_profile()
    if found is None:
        skip_or_fail(
            "PACELINE_REFERENCE_PROFILE names no folder with layers.json; "
            "it is at https://github.com/umichAC99/H-Oobleck-local"
        )
    return found


def test_optimum_of_ex1_by_oobleck(folder: Path) -> None:
    found = plan(real_example(folder, "Ex1"), objective="t_oobleck", compare=False)
    times = evaluate(found.problem, found.template)
    assert times.t_oobleck is not None
    assert times.t_oobleck / PS_PER_MS == pytest.approx(93_581.126, rel=EXACT)
    assert found.optimal
    devices = found.problem.spec.devices
    rows = [
        (s.first, s.end - 1, found.problem.options[s.option].gpus, devices[s.nodes[0][0]].name)
        for s in found.template
    ]
    assert rows == [
        (0, 13, 2, "v100"), (14, 26, 2, "3090"), (27, 39, 2, "3090"), (40, 49, 2, "v100"),
    ]  # fmt: skip


def test_optimum_of_ex3_by_oobleck(folder: Path) -> None:
    found = plan(real_example(folder, "Ex3"), objective="t_oobleck", compare=False)
    # rounded to whole ms in the publication
    assert evaluate(found.problem, found.template).by("t_oobleck") / PS_PER_MS == pytest.approx(
        30_760, abs=0.5
    )
    assert found.optimal


def test_divide_and_conquer_finds_the_optimum_of_ex1(folder: Path) -> None:
    spec = real_example(folder, "Ex1")
    found = plan(spec, method="exhaustive", objective="t_oobleck", compare=False)
    cost = evaluate(found.problem, found.template).by("t_oobleck")
    assert cost / PS_PER_MS == pytest.approx(93_581.126, rel=EXACT)
    assert faults_of_template(found.problem, found.template) == []


def test_ditto_on_ex1_is_optimal(folder: Path) -> None:
    found = plan(real_example(folder, "Ex1"), method="ditto", objective="t_oobleck", compare=False)
    cost = evaluate(found.problem, found.template).by("t_oobleck")
    assert cost / PS_PER_MS == pytest.approx(93_581.126, rel=EXACT)
    assert found.folding is not None
    assert found.folding.factors == (1, 2)


def test_ditto_on_ex3_is_one_and_a_half_percent_above(folder: Path) -> None:
    spec = real_example(folder, "Ex3")
    best = plan(spec, objective="t_oobleck", compare=False)
    ditto = plan(spec, method="ditto", objective="t_oobleck", compare=False)
    ratio = evaluate(ditto.problem, ditto.template).by("t_oobleck") / evaluate(
        best.problem, best.template
    ).by("t_oobleck")
    assert ratio == pytest.approx(1.015, abs=0.0005)


def test_greedy_with_the_programs_rule_on_ex1(folder: Path) -> None:
    spec = real_example(folder, "Ex1", greedy_rule="code")
    found = plan(spec, method="greedy", objective="t_oobleck", compare=False)
    cost = evaluate(found.problem, found.template).by("t_oobleck")
    assert cost / PS_PER_MS == pytest.approx(102_273.244, rel=EXACT)


def test_greedy_would_need_more_devices_than_ex3_has(folder: Path) -> None:
    with pytest.raises(InfeasiblePlanError, match="need 12 v100, there are 8"):
        plan(real_example(folder, "Ex3"), method="greedy", objective="t_oobleck", compare=False)


@pytest.mark.parametrize("name", CLUSTERS)
def test_ditto_is_never_below_the_proven_optimum(folder: Path, name: str) -> None:
    found = plan(real_example(folder, name), objective="t_std")
    assert found.optimal
    best = evaluate(found.problem, found.template).t_std
    for other in found.comparison.values():
        assert evaluate(other.problem, other.template).t_std >= best


def test_independent_checker_accepts_the_proof_of_ex1(folder: Path) -> None:
    found = plan(real_example(folder, "Ex1"), objective="t_std", compare=False)
    assert found.certificate is not None
    assert faults_of_certificate(found.problem, found.template, found.certificate) == []
