"""Sequences over ranks and microbatches: `balance` and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline_client.balance.bins import InfeasibleError, Limits
from paceline_client.balance.cost import Cost


class Place(NamedTuple):
    """Where a sequence of a batch is."""

    rank: int
    microbatch: int
    sequence: int


def step_cost(costs: Sequence[Sequence[float]], stages: int = 1) -> float:
    """Return the time of a step from the cost of each microbatch on a stage, [rank][microbatch].

    A pipeline processes its microbatches in sequence, and its bubble is as long as the largest one
    on the other stages: Σ + (stages − 1)·max. The slowest rank counts.
    """
    return max(sum(rank) + (stages - 1) * max(rank) for rank in costs)


def balance(
    batch: Sequence[Sequence[Sequence[int]]],
    *,
    cost: Cost | None = None,
    max_tokens: int | None = None,
    stages: int = 1,
) -> list[list[list[Place]]]:
    """Return where each sequence of a batch should go, as [rank][microbatch] lists of places.

    Sequences are divided anew over ranks and microbatches, or whole microbatches over ranks where
    the limit of tokens allows nothing else; the result with the least `step_cost` is returned.
    Raises `ValueError` for an empty microbatch, unequal numbers of them, or a negative length.

    Parameters
    ----------
    batch : nested sequence of int
        Lengths as [rank][microbatch][sequence], at least one in each microbatch.
    cost : Cost, optional
        Of a microbatch; by default the sum of the squares.
    max_tokens : int, optional
        The most tokens of a microbatch, for its memory; by default those of the largest one.
    stages : int
        Pipeline stages.
    """
    cost = cost or Cost()
    ranks, count = _shape(batch)
    limit = max(sum(microbatch) for rank in batch for microbatch in rank)
    limit = limit if max_tokens is None else max(max_tokens, limit)
    places = [
        Place(r, m, i)
        for r, rank in enumerate(batch)
        for m, microbatch in enumerate(rank)
        for i in range(len(microbatch))
    ]
    lengths = [batch[r][m][i] for r, m, i in places]
    number = {place: index for index, place in enumerate(places)}

    whole = [
        [number[Place(r, m, i)] for i in range(len(microbatch))]
        for r, rank in enumerate(batch)
        for m, microbatch in enumerate(rank)
    ]
    today = [whole[r * count : (r + 1) * count] for r in range(ranks)]
    dealt = deal([cost.of(lengths[i] for i in microbatch) for microbatch in whole], ranks)
    answers = [[_in_turn([whole[i] for i in rank], lengths, cost) for rank in dealt], today]
    try:
        shares = assign(lengths, ranks, microbatches=count, max_tokens=limit, cost=cost)
        packed = []
        for share in shares:
            own = [lengths[i] for i in share]
            bins = pack(own, count, max_tokens=limit, cost=cost)
            packed.append(_in_turn([[share[i] for i in one] for one in bins], lengths, cost))
        answers.insert(0, packed)
    except InfeasibleError:
        pass

    def takes(answer: Sequence[Sequence[Sequence[int]]]) -> float:
        costs = [[cost.of(lengths[i] for i in one) for one in rank] for rank in answer]
        return step_cost(costs, stages)

    best = min(answers, key=takes)
    return [[[places[i] for i in sorted(one)] for one in rank] for rank in best]


def _shape(batch: Sequence[Sequence[Sequence[int]]]) -> tuple[int, int]:
    counts = {len(rank) for rank in batch}
    if len(counts) != 1 or counts == {0}:
        raise ValueError("every rank needs the same number of microbatches, at least one")
    if any(not microbatch for rank in batch for microbatch in rank):
        raise ValueError("a microbatch has no sequence")
    if any(length < 0 for rank in batch for microbatch in rank for length in microbatch):
        raise ValueError("a length is negative")
    return len(batch), counts.pop()


def _in_turn(bins: Sequence[list[int]], lengths: Sequence[int], cost: Cost) -> list[list[int]]:
    """Return microbatches with the cheapest first and last and the most expensive in the middle.

    A microbatch after a much larger one makes a stage wait.
    """
    order = sorted(bins, key=lambda one: (cost.of(lengths[i] for i in one), one))
    return order[::2] + order[1::2][::-1]


def deal(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Return which microbatches each rank gets, equally many each, given their costs.

    Minimizes the most expensive share. Microbatches stay as they are, with their tokens and memory.

    Examples
    --------
    >>> deal([9.0, 1.0, 8.0, 2.0], 2)
    [[0, 1], [2, 3]]
    """
    if ranks < 1 or not costs or len(costs) % ranks:
        raise ValueError("the number of microbatches must be a multiple of the number of ranks")
    each = len(costs) // ranks
    return Limits(costs, [0] * len(costs), ranks, None, each, each).solve()


def assign(
    lengths: Sequence[int],
    ranks: int,
    *,
    microbatches: int = 1,
    max_tokens: int | None = None,
    cost: Cost | None = None,
) -> list[list[int]]:
    """Return which sequences each rank gets, minimizing the cost of the most expensive rank.

    Each rank fills `microbatches` microbatches of at least one sequence and at most `max_tokens`
    tokens. `cost` is by default the sum of the squares. Raises `InfeasibleError`.

    Examples
    --------
    >>> assign([5, 4, 3, 3, 3], 2, cost=Cost(linear=1.0, quadratic=0.0))
    [[0, 1], [2, 3, 4]]
    """
    cost = cost or Cost()
    room = None if max_tokens is None else max_tokens * microbatches
    if max_tokens is not None and any(length > max_tokens for length in lengths):
        raise InfeasibleError("a sequence is longer than max_tokens")
    prices = [cost.of_sequence(length) for length in lengths]
    return Limits(prices, lengths, ranks, room, microbatches, len(lengths)).solve()


def pack(
    lengths: Sequence[int],
    microbatches: int,
    *,
    max_tokens: int | None = None,
    cost: Cost | None = None,
) -> list[list[int]]:
    """Return the sequences of each microbatch, minimizing the cost of the most expensive one.

    `max_tokens` and `cost` are as in `assign`. Raises `InfeasibleError`.

    Examples
    --------
    >>> pack([9, 1, 5, 5], 2, max_tokens=10, cost=Cost(linear=1.0, quadratic=0.0))
    [[0, 1], [2, 3]]
    """
    cost = cost or Cost()
    prices = [cost.of_sequence(length) for length in lengths]
    return Limits(prices, lengths, microbatches, max_tokens, 1, len(lengths)).solve()
