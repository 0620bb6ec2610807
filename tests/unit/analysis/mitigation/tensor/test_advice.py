"""The ranking of all alternatives."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.json_text import to_json
from app.analysis.mitigation.tensor.advice import LOSS_PAYS_FROM, Problem, advise
from app.analysis.mitigation.tensor.document import (
    Criterion,
    LossRisk,
    Method,
    MitigationDocument,
)
from app.analysis.mitigation.tensor.group import Communication, Costs, Group
from app.analysis.mitigation.tensor.prediction import Kind, Plans, Sizes

# All methods but sticky migration, which a job may not support.
STEP_METHODS = frozenset(Method) - {Method.STICKY}


def advice(*times: float, budget: float = 0.25, **rest: object) -> MitigationDocument:
    time_s = np.array(times)
    return advise(Problem(Group(time_s, time_s, 1000), budget, **rest))  # type: ignore[arg-type]


def test_alternatives_beyond_the_budget_are_last_and_marked() -> None:
    document = advice(8, 1, 1, 1)
    within = [item.within_budget for item in document.alternatives]
    assert within == sorted(within, reverse=True)
    beyond = [
        (item.method, item.criterion, round(item.gamma, 3))
        for item in document.alternatives
        if item.loss_risk is LossRisk.BEYOND_BUDGET
    ]
    assert set(beyond) == {
        (Method.ZERO, Criterion.T_MIN, 0.875),
        (Method.ZERO, Criterion.T_AVG, 0.656),
        (Method.SEMI, Criterion.T_MIN, 0.875),
    }


@pytest.mark.parametrize(
    ("budget", "risks"),
    [
        (
            0.25,
            {0.25: LossRisk.SMALL, 0.656: LossRisk.BEYOND_BUDGET, 0.875: LossRisk.BEYOND_BUDGET},
        ),
        (0.9, {0.656: LossRisk.LARGE, 0.875: LossRisk.LARGE}),
    ],
)
def test_a_large_share_has_a_large_risk_even_if_the_budget_allows_it(
    budget: float, risks: dict[float, LossRisk]
) -> None:
    document = advice(8, 1, 1, 1, budget=budget)
    found = {round(item.gamma, 3): item.loss_risk for item in document.alternatives}
    assert found == {0.0: LossRisk.NONE, **risks}


def test_without_costs_resizing_to_the_budget_and_migrating_the_rest_is_fastest() -> None:
    document = advice(8, 1, 1, 1)
    assert document.chosen is Method.SEMI
    assert document.best.gamma == 0.25
    assert document.best.migrated_columns == 625
    assert not document.costs_sampled


def test_columns_are_left_out_only_where_that_buys_five_per_cent() -> None:
    """With one slow rank of sixteen, water-filling leaves little to gain; of four, more."""
    cheap = advice(
        2, *[1] * 15, costs=Costs(communicate=Communication(0.0, 4e-5)), methods=STEP_METHODS
    )
    assert cheap.best.loss_risk is LossRisk.NONE
    faster = min(item.predicted_time_s for item in cheap.alternatives if item.within_budget)
    assert 1 < cheap.best.predicted_time_s / faster < 1.05

    dear = advice(
        2, 1, 1, 1, costs=Costs(communicate=Communication(0.2, 4e-4)), methods=STEP_METHODS
    )
    assert dear.best.loss_risk is LossRisk.SMALL
    lossless = min(
        item.predicted_time_s for item in dear.alternatives if item.loss_risk is LossRisk.NONE
    )
    assert lossless / dear.best.predicted_time_s > 1.05


def test_a_job_that_may_lose_nothing_moves_for_good() -> None:
    document = advice(8, 1, 1, 1, budget=0.0, costs=Costs(communicate=Communication(0.1, 0.001)))
    assert document.chosen is Method.STICKY
    assert document.best.loss_risk is LossRisk.NONE
    assert document.best.speedup == pytest.approx(6.25, rel=2e-3)


def test_a_group_without_stragglers_is_left_alone() -> None:
    document = advice(1.0, 1.05, 1.09)
    assert document.chosen is Method.NONE
    assert document.stragglers == ()
    assert document.best.speedup == 1


def test_only_what_the_job_knows_is_advised() -> None:
    document = advice(8, 1, 1, 1, methods=frozenset({Method.NONE, Method.ZERO}))
    assert {item.method for item in document.alternatives} == {Method.NONE, Method.ZERO}


def test_the_same_shares_by_another_criterion_are_listed_once() -> None:
    document = advice(1.0, 1.0, 1.0)
    assert [item.method for item in document.alternatives] == list(Method)


def test_bytes_are_counted_a_step_and_for_sticky_once() -> None:
    sizes = Sizes(Kind.HIDDEN_UNIT, 64, 256, 2, 2, 16)
    document = advice(8, 1, 1, 1, sizes=(sizes,))
    found = {item.method: item for item in reversed(document.alternatives)}
    moved = found[Method.STICKY].migrated_columns
    assert found[Method.STICKY].extra_bytes == sizes.once_bytes(moved)
    assert found[Method.WATERFILL].extra_bytes == sizes.step_bytes(moved)
    assert found[Method.ZERO].extra_bytes == 0


def test_columns_alone_do_not_stay_where_they_were_moved() -> None:
    """The part of Y for moved columns has to be sent back in each step."""
    columns = Sizes(Kind.COLUMN, 64, 256, 2, 2, 16)
    document = advice(8, 1, 1, 1, sizes=(columns,))
    assert Method.STICKY not in {item.method for item in document.alternatives}

    both = (replace(columns, plans=Plans.STEP), Sizes(Kind.HIDDEN_UNIT, 64, 256, 2, 2, 16))
    heads = replace(both[1], plans=Plans.ONCE, units=8)
    document = advice(8, 1, 1, 1, sizes=(both[0], heads))
    found = {item.method: item for item in reversed(document.alternatives)}
    moved = found[Method.STICKY].migrated_columns
    assert found[Method.STICKY].extra_bytes == heads.once_bytes(moved * 8 / 1000)
    assert found[Method.MIGRATE].extra_bytes == columns.step_bytes(875)


@given(
    st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.05, 1.0)), min_size=2, max_size=8),
    st.floats(0.0, 1.0),
    st.sampled_from([None, Costs(communicate=Communication(0.01, 1e-4))]),
)
def test_whatever_the_group_the_choice_is_within_the_budget_and_no_slower(
    ranks: list[tuple[float, float]], budget: float, costs: Costs | None
) -> None:
    time_s = np.array([time for time, _ in ranks])
    matmul_s = time_s * np.array([share for _, share in ranks])
    document = advise(Problem(Group(time_s, matmul_s, 128), budget, costs))

    assert document.best.within_budget
    assert document.best.gamma <= budget + 1e-9
    assert document.best.predicted_time_s <= document.slowest_time_s * (1 + 1e-9)
    for within in (True, False):
        for loses in (True, False):
            times = [
                item.predicted_time_s
                for item in document.alternatives
                if (item.within_budget, item.loss_risk is not LossRisk.NONE) == (within, loses)
            ]
            assert times == sorted(times)
    lossless = min(
        item.predicted_time_s for item in document.alternatives if item.loss_risk is LossRisk.NONE
    )
    if document.best.loss_risk is not LossRisk.NONE:
        assert document.best.predicted_time_s <= lossless / (1 + LOSS_PAYS_FROM) * (1 + 1e-9)
    assert json.loads(to_json(document))["schema"] == "paceline.mitigation/1"
