from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_client.tensor.plan import (
    Division,
    Method,
    Offer,
    Plan,
    PlanError,
    RankShare,
    divide,
    plan_document,
    read_plan,
)
from paceline_client.tensor.service import Peer


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(2, 6))
    columns = draw(st.integers(1, 200))
    shares = []
    for rank in draw(st.sets(st.integers(0, size - 1), max_size=size)):
        left = columns
        resized = draw(st.integers(0, left))
        left -= resized
        to = []
        for target in draw(st.sets(st.sampled_from([r for r in range(size) if r != rank]))):
            count = draw(st.integers(0, left))
            left -= count
            to.append((target, count))
        shares.append(RankShare(rank, resized, tuple(to)))
    return Plan(1, Method.SEMI, columns, size, tuple(shares))


def lost(division: Division, rank: int) -> int:
    return division.resized[rank] + division.units - division.own(rank)


@given(plans(), st.integers(1, 300))
def test_every_unit_is_computed_once_left_out_or_lent(plan: Plan, units: int) -> None:
    division = divide(plan, units)
    for loan in division.loans:
        covered = sorted(unit for first, last in loan.slices for unit in range(first, last))
        assert covered == list(range(loan.count))
        assert loan.stop == units
        assert loan.borrowed(loan.source) == 0
    assert all(0 <= lost(division, rank) <= units for rank in range(plan.size))


@given(plans(), st.integers(1, 300))
def test_shares_of_a_layer_are_the_plans_to_within_a_unit(plan: Plan, units: int) -> None:
    division = divide(plan, units)
    for share in plan.ranks:
        wanted = share.resized_columns * units / plan.columns
        assert abs(division.resized[share.rank] - wanted) < 1
        lent = dict.fromkeys(range(plan.size), 0)
        for loan in division.loans:
            if loan.source == share.rank:
                lent = {rank: loan.borrowed(rank) for rank in range(plan.size)}
        for target, columns in share.to:
            assert abs(lent[target] - columns * units / plan.columns) < 1


@given(plans())
def test_every_column_that_is_not_left_out_is_computed_by_a_rank(plan: Plan) -> None:
    left_out = sum(share.resized_columns for share in plan.ranks) / plan.columns
    computed = sum(plan.computed(rank) for rank in range(plan.size))
    assert computed + left_out == pytest.approx(plan.size)


def test_receivers_take_slices_in_the_order_after_the_source() -> None:
    plan = Plan(1, Method.MIGRATE, 12, 4, (RankShare(2, 0, ((0, 2), (1, 3), (3, 4))),))
    (loan,) = divide(plan, 12).loans
    assert (loan.start, loan.stop) == (3, 12)
    assert loan.slices == ((4, 6), (6, 9), (0, 0), (0, 4))


@pytest.mark.parametrize(
    ("shares", "path"),
    [
        ([RankShare(4, 1)], "ranks[0].rank"),
        ([RankShare(0, 1), RankShare(0, 2)], "ranks"),
        ([RankShare(0, 9)], "ranks[0]"),
        ([RankShare(1), RankShare(0, 4, ((1, 5),))], "ranks[1]"),
        ([RankShare(0, -1)], "ranks[0]"),
        ([RankShare(0, 0, ((0, 1),))], "ranks[0].to"),
        ([RankShare(0, 0, ((1, 1), (1, 1)))], "ranks[0].to"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(shares: list[RankShare], path: str) -> None:
    with pytest.raises(PlanError) as refused:
        Plan(1, Method.SEMI, 8, 4, tuple(shares))
    assert refused.value.path == path


@given(plans(), st.booleans())
def test_the_ranks_read_what_the_first_one_was_offered(plan: Plan, applies: bool) -> None:  # noqa: FBT001 - drawn
    offer = Offer(plan, 40, applies=applies)
    assert read_plan(plan_document(offer, 2), 2, plan.size) == offer


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"attempt": 3}, "attempt"),
        ({"world_size": 8}, "world_size"),
        ({"method": ["zero"]}, "method"),
        ({"method": None}, "method"),
        ({"expires_step": "40"}, "expires_step"),
        ({"version": True}, "version"),
        ({"columns": 0}, "columns"),
        ({"ranks": {}}, "ranks"),
        ({"ranks": [None]}, "ranks[0]"),
        ({"ranks": [{"rank": 0, "resized_columns": 1.5}]}, "ranks[0].resized_columns"),
        ({"ranks": [{"rank": 0, "resized_columns": 0, "to": {"x": 1}}]}, "ranks[0].to"),
        ({"ranks": [{"rank": 0, "resized_columns": 0, "to": {"1": None}}]}, "ranks[0].to.1"),
    ],
)
def test_documents_that_are_no_plan_are_refused_by_field(change: dict[str, Any], path: str) -> None:
    plan = Plan(1, Method.ZERO, 8, 4, (RankShare(1, 2),))
    document = plan_document(Offer(plan, 40), 2) | change
    with pytest.raises(PlanError) as refused:
        read_plan(document, 2, 4)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("server", "job", "group", "attempt"),
    [
        ("paceline:8765", "llama", "0-2", 1),
        ("http://paceline:8765", "", "0-2", 1),
        ("http://paceline:8765", "llama", "", 1),
        ("http://paceline:8765", "llama", "0-2", -1),
    ],
)
def test_a_peer_needs_an_address_and_names(server: str, job: str, group: str, attempt: int) -> None:
    with pytest.raises(ValueError, match=r"http|need names"):
        Peer(server, job, group, attempt)
