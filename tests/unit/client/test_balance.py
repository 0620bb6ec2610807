"""Balanced sequences over ranks and microbatches: near the optimum, and complete."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_client.balance import (
    Cost,
    InfeasibleError,
    Place,
    assign,
    balance,
    deal,
    pack,
    step_cost,
)
from tests.support.nightly import drawn

FULL = 32_768
# Cost in seconds: at the full length, attention takes as long as the rest.
PAPER = Cost(fixed=0.05, linear=0.6 / FULL, quadratic=1.0 / FULL**2)
Batch = list[list[list[int]]]


def lengths_of(rng: np.random.Generator, count: int) -> list[int]:
    """Return lengths with the paper's long tail (figure 10)."""
    drawn = rng.lognormal(np.log(2_000), 1.6, count)
    return [int(length) for length in np.clip(drawn, 1, FULL)]


def packed(rng: np.random.Generator, ranks: int, microbatches: int) -> Batch:
    """Return a batch in order of arrival: microbatches are full, their last sequence is cut."""

    def filled() -> list[int]:
        left, found = FULL, []
        while left:
            found.append(min(left, lengths_of(rng, 1)[0]))
            left -= found[-1]
        return found

    return [[filled() for _ in range(microbatches)] for _ in range(ranks)]


def moved(batch: Batch, places: list[list[list[Place]]]) -> Batch:
    return [
        [[batch[p.rank][p.microbatch][p.sequence] for p in microbatch] for microbatch in rank]
        for rank in places
    ]


def takes(batch: Batch, stages: int, cost: Cost = PAPER) -> float:
    return step_cost([[cost.of(microbatch) for microbatch in rank] for rank in batch], stages)


def best_by_trying(
    prices: list[float], tokens: list[int], bins: int, room: float, least: int = 1
) -> float:
    best = np.inf
    for chosen in itertools.product(range(bins), repeat=len(prices)):
        members = [[i for i, own in enumerate(chosen) if own == b] for b in range(bins)]
        if min(map(len, members)) >= least and all(
            sum(tokens[i] for i in own) <= room for own in members
        ):
            best = min(best, max(sum(prices[i] for i in own) for own in members))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_small_packings_are_within_three_per_cent_of_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bins, count = int(rng.integers(2, 4)), int(rng.integers(4, 8))
    lengths = lengths_of(rng, count)
    room = max(*lengths, int(sum(lengths) / bins * rng.uniform(1.0, 1.5)))
    prices = [PAPER.of_sequence(length) for length in lengths]
    best = best_by_trying(prices, lengths, bins, room)
    if not np.isfinite(best):
        with pytest.raises(InfeasibleError):
            pack(lengths, bins, max_tokens=room, cost=PAPER)
        return
    found = pack(lengths, bins, max_tokens=room, cost=PAPER)
    assert max(sum(prices[i] for i in own) for own in found) <= 1.03 * best
    assert all(sum(lengths[i] for i in own) <= room for own in found)


@pytest.mark.parametrize("seed", range(10))
def test_small_assignments_are_within_three_per_cent_of_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = lengths_of(rng, 8)
    prices = [PAPER.of_sequence(length) for length in lengths]
    room = 2 * max(lengths)
    best = best_by_trying(prices, lengths, 2, room, least=2)
    found = assign(lengths, 2, microbatches=2, max_tokens=max(lengths), cost=PAPER)
    assert max(sum(prices[i] for i in own) for own in found) <= 1.03 * best


@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 8), (16, 8), (32, 12)])
@pytest.mark.parametrize("headroom", [1.0, 1.25])
def test_large_batches_are_within_three_per_cent_of_a_bound(
    ranks: int, microbatches: int, headroom: float
) -> None:
    batch = packed(np.random.default_rng(ranks), ranks, microbatches)
    limit = int(headroom * FULL)
    even = moved(batch, balance(batch, cost=PAPER, max_tokens=limit, stages=4))
    whole = sum(PAPER.of(microbatch) for rank in batch for microbatch in rank) / ranks
    longest = max(PAPER.of([s]) for rank in batch for microbatch in rank for s in microbatch)
    bound = whole + 3 * max(longest, whole / microbatches)
    assert takes(even, 4) <= 1.03 * bound
    assert takes(even, 4) < takes(batch, 4)
    assert max(sum(microbatch) for rank in even for microbatch in rank) <= limit


def sequences() -> st.SearchStrategy[Batch]:
    microbatch = st.lists(st.integers(0, 60), min_size=1, max_size=4)
    return st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
        lambda sizes: st.lists(
            st.lists(microbatch, min_size=sizes[1], max_size=sizes[1]),
            min_size=sizes[0],
            max_size=sizes[0],
        )
    )


@given(sequences(), st.integers(1, 4), st.sampled_from([None, 60, 500]))
@drawn(60)
def test_every_sequence_is_somewhere_once_and_nothing_gets_worse(
    batch: Batch, stages: int, max_tokens: int | None
) -> None:
    cost = Cost(0.1, 1.0, 0.05)
    places = balance(batch, cost=cost, stages=stages, max_tokens=max_tokens)
    even = moved(batch, places)
    flat = [place for rank in places for microbatch in rank for place in microbatch]
    assert Counter(flat) == Counter(
        Place(r, m, i)
        for r, rank in enumerate(batch)
        for m, microbatch in enumerate(rank)
        for i in range(len(microbatch))
    )
    assert [len(rank) for rank in even] == [len(rank) for rank in batch]
    assert all(microbatch for rank in even for microbatch in rank)
    largest = max(sum(microbatch) for rank in batch for microbatch in rank)
    most = max(largest, max_tokens or 0)
    assert max(sum(microbatch) for rank in even for microbatch in rank) <= most
    assert takes(even, stages, cost) <= takes(batch, stages, cost) * (1 + 1e-9)
    assert places == balance(batch, cost=cost, stages=stages, max_tokens=max_tokens)


def test_without_room_whole_microbatches_change_places() -> None:
    # Every microbatch is full, so nothing can be repacked.
    batch = [[[100], [100], [61, 39]], [[53, 47], [71, 29], [83, 17]]]
    even = moved(batch, balance(batch))
    before = Counter(tuple(sorted(m)) for rank in batch for m in rank)
    assert Counter(tuple(sorted(m)) for rank in even for m in rank) == before
    squares = [sum(s * s for m in rank for s in m) for rank in even]
    assert sorted(squares) == [21_124, 22_196]


def test_the_most_expensive_microbatch_is_neither_first_nor_last() -> None:
    batch = [[[9], [1], [5], [7], [3]]]
    ((*order,),) = moved(batch, balance(batch))
    assert [sum(microbatch) for microbatch in order] == [1, 5, 9, 7, 3]


def test_dealt_microbatches_are_as_many_on_each_rank() -> None:
    rng = np.random.default_rng(3)
    costs = rng.lognormal(0, 0.5, 48).tolist()
    shares = deal(costs, 6)
    assert sorted(i for own in shares for i in own) == list(range(48))
    assert {len(own) for own in shares} == {8}
    assert max(sum(costs[i] for i in own) for own in shares) <= 1.01 * sum(costs) / 6


def test_measured_times_give_the_cost() -> None:
    rng = np.random.default_rng(4)
    drawn = [lengths_of(rng, int(rng.integers(1, 9))) for _ in range(200)]
    measured = [(own, PAPER.of(own) * float(rng.lognormal(0, 0.01))) for own in drawn]
    fitted = Cost.fit(measured)
    assert fitted.linear == pytest.approx(PAPER.linear, rel=0.1)
    assert fitted.quadratic == pytest.approx(PAPER.quadratic, rel=0.1)


def test_a_cost_of_equal_token_counts_has_no_negative_price() -> None:
    rng = np.random.default_rng(5)
    (drawn,) = packed(rng, 1, 40)
    fitted = Cost.fit((own, PAPER.of(own)) for own in drawn)
    assert min(fitted.fixed, fitted.linear, fitted.quadratic) >= 0
    for own in drawn:
        assert fitted.of(own) == pytest.approx(PAPER.of(own), rel=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: balance([[[1], [2]], [[3]]]),
        lambda: balance([[[1], []]]),
        lambda: balance([[[1], [-2]]]),
        lambda: balance([[]]),
        lambda: deal([1.0, 2.0, 3.0], 2),
        lambda: pack([1], 2),
        lambda: pack([9, 9], 2, max_tokens=8),
        lambda: pack([0, 1], 2, max_tokens=0),
        lambda: assign([9, 1], 1, max_tokens=8),
        lambda: assign([1, 2, 3], 2, microbatches=2),
        lambda: Cost.fit([]),
    ],
)
def test_impossible_arguments_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match=r"\w"):
        wrong()
