"""Balance the cost of microbatches: assign sequences to data-parallel ranks and pack them.

The time of attention grows with the square of a sequence's length. Microbatches of equally many
tokens therefore take different times, and every rank waits for the slowest. After a batch is drawn,

>>> batch = [[[4000, 96], [2048, 2048]], [[1024] * 4, [512] * 8]]
>>> even = balance(batch, cost=Cost(linear=1.0, quadratic=1e-3))

``even[rank][microbatch]`` is a list of `Place`: the rank, microbatch and position at which each of
its sequences is now. Every sequence is used once and whole, ranks keep their number of
microbatches, and none has more tokens than the largest one had, or `max_tokens`. The result is the
same on every rank and machine, without communication.

Only the standard library is used, and no randomness. (Paper: "Understanding Stragglers in Large
Model Training Using What-if Analysis", section 5.3.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Cost", "InfeasibleError", "Place", "assign", "balance", "deal", "pack", "step_cost"]

# Maximum number of rounds of local improvement, and of nodes of an exact search.
_TURNS = 400
_NODES = 4_000
# A division whose relative distance from the lower bound is at most this is not improved further.
_NEAR = 1e-3
# Smaller relative differences between prices are rounding errors.
_EQUAL = 1e-12
# Maximum number of pieces for an exact search.
_FEW = 16


class InfeasibleError(ValueError):
    """The sequences cannot be divided: too few sequences, or too many tokens."""


class _Division:
    """The division of pieces over bins that minimizes the price of the most expensive bin.

    A greedy division is improved by exchanges between bins; few pieces are divided exactly, by
    branch and bound. A bin has at most `room` tokens, unless that is None, and `least` to `most`
    pieces.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the limits of a division
        self,
        prices: Sequence[float],
        tokens: Sequence[int],
        bins: int,
        room: int | None,
        least: int,
        most: int,
    ) -> None:
        self.prices, self.tokens, self.bins = prices, tokens, bins
        self.room, self.least, self.most = room, least, most
        self.order = sorted(range(len(prices)), key=lambda i: (-prices[i], -tokens[i], i))

    def solve(self) -> list[list[int]]:
        """Return the pieces of each bin; raises `InfeasibleError`."""
        count = len(self.prices)
        if self.bins < 1 or count < self.bins * self.least or count > self.bins * self.most:
            raise InfeasibleError(f"{count} pieces do not fill {self.bins} bins")
        if self.room is not None and sum(self.tokens) > self.bins * self.room:
            raise InfeasibleError(f"{sum(self.tokens)} tokens do not fit into {self.bins} bins")
        answers = [
            answer
            for answer in (self._greedy(by_tokens=False), self._greedy(by_tokens=True))
            if answer is not None
        ]
        bound = self._bound()
        improved = (self._improved(answer, bound) for answer in answers)
        best = min(improved, key=self._worst, default=None)
        if count <= _FEW and (best is None or self._worst(best) > bound * (1 + _NEAR)):
            best = self._searched(best, bound)
        if best is None:
            raise InfeasibleError("no division within the limit of tokens was found")
        return sorted(sorted(pieces) for pieces in best)

    def _bound(self) -> float:
        """Return a lower bound of the price of the most expensive bin."""
        prices = sorted(self.prices, reverse=True)
        bound = max(prices[0], sum(prices) / self.bins)
        # With more pieces than bins, at least one bin contains two of the most expensive pieces.
        for together in range(1, min(4, len(prices) // self.bins + 1)):
            first = together * self.bins
            if first < len(prices):
                bound = max(bound, sum(prices[first - together : first + 1]))
        return bound

    def _worst(self, answer: Sequence[Sequence[int]]) -> float:
        return max(sum(self.prices[i] for i in pieces) for pieces in answer)

    def _greedy(self, *, by_tokens: bool) -> list[list[int]] | None:
        """Return a greedy division: each piece goes into the cheapest bin that has room for it.

        Pieces are taken from the most expensive on or, with `by_tokens`, from the longest on.
        Returns None if a piece fits into no bin.
        """
        order = (
            sorted(self.order, key=lambda i: (-self.tokens[i], -self.prices[i], i))
            if by_tokens
            else self.order
        )
        bins: list[list[int]] = [[] for _ in range(self.bins)]
        tokens = [0] * self.bins
        heap = [(0.0, b) for b in range(self.bins)]
        lacking = self.bins * self.least
        for position, piece in enumerate(order):
            left = len(order) - position
            passed = []
            chosen = None
            while heap:
                price, b = heapq.heappop(heap)
                full = len(bins[b]) >= self.most
                fits = self.room is None or tokens[b] + self.tokens[piece] <= self.room
                needed = lacking < left or len(bins[b]) < self.least
                if fits and needed and not full:
                    chosen = price, b
                    break
                if not full:
                    passed.append((price, b))
            for item in passed:
                heapq.heappush(heap, item)
            if chosen is None:
                return None
            price, b = chosen
            lacking -= len(bins[b]) < self.least
            bins[b].append(piece)
            tokens[b] += self.tokens[piece]
            heapq.heappush(heap, (price + self.prices[piece], b))
        return bins

    def _improved(self, answer: list[list[int]], bound: float) -> list[list[int]]:
        """Return the division, improved by exchanges between the most expensive bin and others."""
        bins = [list(pieces) for pieces in answer]
        price = [sum(self.prices[i] for i in pieces) for pieces in bins]
        tokens = [sum(self.tokens[i] for i in pieces) for pieces in bins]
        for _ in range(_TURNS):
            worst = max(range(self.bins), key=price.__getitem__)
            if price[worst] <= bound * (1 + _NEAR):
                break
            change = self._change(bins, price, tokens, worst)
            if change is None:
                break
            other, give, take = change
            for source, target, pieces in ((worst, other, give), (other, worst, take)):
                for piece in pieces:
                    bins[source].remove(piece)
                    bins[target].append(piece)
                    price[source] -= self.prices[piece]
                    price[target] += self.prices[piece]
                    tokens[source] -= self.tokens[piece]
                    tokens[target] += self.tokens[piece]
        return bins

    def _change(
        self, bins: list[list[int]], price: list[float], tokens: list[int], worst: int
    ) -> tuple[int, list[int], list[int]] | None:
        """Return the best exchange between the most expensive bin, `worst`, and another bin.

        The result is the other bin, the pieces that it gets and the pieces that it gives; None if
        no exchange lowers the maximum price.
        """
        best: tuple[float, int, list[int], list[int]] | None = None
        top = price[worst]
        others = sorted((b for b in range(self.bins) if b != worst), key=price.__getitem__)
        for other in others[:8]:
            gap = top - price[other]
            if gap <= _EQUAL * top:
                break
            for give in bins[worst]:
                for take in (None, *bins[other]):
                    moved = self.prices[give] - (0.0 if take is None else self.prices[take])
                    if not 0 < moved < gap:
                        continue
                    pieces = 0 if take is None else self.tokens[take]
                    change = self.tokens[give] - pieces
                    if self.room is not None and not (
                        tokens[other] + change <= self.room and tokens[worst] - change <= self.room
                    ):
                        continue
                    if take is None and not (
                        len(bins[worst]) > self.least and len(bins[other]) < self.most
                    ):
                        continue
                    after = max(top - moved, price[other] + moved)
                    if after < top * (1 - _EQUAL) and (best is None or after < best[0]):
                        best = (after, other, [give], [] if take is None else [take])
        return None if best is None else best[1:]

    def _searched(self, best: list[list[int]] | None, bound: float) -> list[list[int]] | None:
        """Return the best division of a few pieces, by branch and bound."""
        limit = float("inf") if best is None else self._worst(best)
        bins: list[list[int]] = [[] for _ in range(self.bins)]
        price, tokens = [0.0] * self.bins, [0] * self.bins
        left = [0, *accumulate(self.prices[i] for i in reversed(self.order))][::-1]
        nodes = _NODES
        division = best

        def descend(position: int) -> None:
            nonlocal limit, nodes, division
            nodes -= 1
            if nodes < 0 or limit <= bound * (1 + _EQUAL):
                return
            if position == len(self.order):
                limit, division = max(price), [list(pieces) for pieces in bins]
                return
            lacking = sum(max(self.least - len(pieces), 0) for pieces in bins)
            if lacking > len(self.order) - position:
                return
            if (sum(price) + left[position]) / self.bins >= limit * (1 - _EQUAL):
                return
            piece = self.order[position]
            seen = set()
            for b in sorted(range(self.bins), key=lambda b: (price[b], b)):
                state = (price[b], tokens[b], len(bins[b]))
                fits = self.room is None or tokens[b] + self.tokens[piece] <= self.room
                if state in seen or not fits or len(bins[b]) >= self.most:
                    continue
                seen.add(state)
                if price[b] + self.prices[piece] >= limit * (1 - _EQUAL):
                    continue
                bins[b].append(piece)
                price[b] += self.prices[piece]
                tokens[b] += self.tokens[piece]
                descend(position + 1)
                bins[b].pop()
                price[b] -= self.prices[piece]
                tokens[b] -= self.tokens[piece]

        descend(0)
        return division


@dataclass(frozen=True)
class Cost:
    """The cost of a microbatch, ``fixed + linear·Σs + quadratic·Σs²`` of its sequences' lengths.

    In any unit, such as seconds. The default is the sum of the squares.
    """

    fixed: float = 0.0
    linear: float = 0.0
    quadratic: float = 1.0

    def of(self, lengths: Iterable[int]) -> float:
        """Return the cost of a microbatch with these sequences."""
        return self.fixed + sum(self.of_sequence(length) for length in lengths)

    def of_sequence(self, length: int) -> float:
        """Return the cost that one sequence adds to its microbatch."""
        return self.linear * length + self.quadratic * length * length

    @classmethod
    def fit(cls, microbatches: Iterable[tuple[Sequence[int], float]]) -> Cost:
        """Return the cost with the least squared error on measured microbatches (lengths, time).

        Examples
        --------
        >>> cost = Cost(1.0, 0.5, 0.25)
        >>> fitted = Cost.fit([(s, cost.of(s)) for s in ([8], [4, 4], [2, 6], [1] * 3, [7])])
        >>> round(fitted.fixed, 6), round(fitted.linear, 6), round(fitted.quadratic, 6)
        (1.0, 0.5, 0.25)
        """
        rows = [
            (1.0, float(sum(lengths)), float(sum(s * s for s in lengths)), float(time))
            for lengths, time in microbatches
        ]
        if not rows:
            raise ValueError("no microbatches to fit a cost to")
        # Terms whose price cannot be determined, or would be negative, are left out.
        choices = ([0, 1, 2], [1, 2], [0, 2], [2], [0, 1], [1], [0])
        fits = (_least_squares(rows, chosen) for chosen in choices)
        valid = [fit for fit in fits if fit is not None and min(fit[1]) >= 0]
        _, prices = min(valid, key=lambda fit: fit[0])
        return cls(*prices)


def _least_squares(
    rows: Sequence[tuple[float, float, float, float]], chosen: Sequence[int]
) -> tuple[float, tuple[float, float, float]] | None:
    """Return the squared error and the prices of a subset of (1, Σs, Σs²); None if collinear."""
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(3)]
    n = len(chosen)
    table = [[0.0] * (n + 1) for _ in range(n)]
    for row in rows:
        values = [row[i] / scale[i] for i in chosen]
        for a in range(n):
            for b in range(n):
                table[a][b] += values[a] * values[b]
            table[a][n] += values[a] * row[3]
    for a in range(n):
        pivot = max(range(a, n), key=lambda b: abs(table[b][a]))
        if abs(table[pivot][a]) < 1e-9 * len(rows):
            return None
        table[a], table[pivot] = table[pivot], table[a]
        for b in range(n):
            if b != a:
                share = table[b][a] / table[a][a]
                table[b] = [x - share * y for x, y in zip(table[b], table[a], strict=True)]
    prices = [0.0, 0.0, 0.0]
    for a, i in enumerate(chosen):
        prices[i] = table[a][n] / table[a][a] / scale[i]
    error = sum(
        (sum(p * x for p, x in zip(prices, row[:3], strict=True)) - row[3]) ** 2 for row in rows
    )
    return error, (prices[0], prices[1], prices[2])


class Place(NamedTuple):
    """The position of a sequence in a batch."""

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
    """Return the new place of each sequence of a batch, as [rank][microbatch] lists of places.

    Sequences are divided anew over ranks and microbatches, or whole microbatches over ranks where
    the limit of tokens allows nothing else; the result with the least `step_cost` is returned.
    Raises `ValueError` for an empty microbatch, unequal numbers of them, or a negative length.

    Parameters
    ----------
    batch : nested sequence of int
        Lengths as [rank][microbatch][sequence], at least one in each microbatch.
    cost : Cost, optional
        Cost of a microbatch; by default the sum of the squares of its sequences' lengths.
    max_tokens : int, optional
        Maximum number of tokens of a microbatch, for its memory; by default the number of the
        largest microbatch.
    stages : int
        Number of pipeline stages.
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
    current = [whole[r * count : (r + 1) * count] for r in range(ranks)]
    dealt = deal([cost.of(lengths[i] for i in microbatch) for microbatch in whole], ranks)
    answers = [[_in_turn([whole[i] for i in rank], lengths, cost) for rank in dealt], current]
    try:
        shares = assign(lengths, ranks, microbatches=count, max_tokens=limit, cost=cost)
        packed = []
        for share in shares:
            own = [lengths[i] for i in share]
            bins = pack(own, count, max_tokens=limit, cost=cost)
            packed.append(_in_turn([[share[i] for i in pieces] for pieces in bins], lengths, cost))
        answers.insert(0, packed)
    except InfeasibleError:
        pass

    def takes(answer: Sequence[Sequence[Sequence[int]]]) -> float:
        costs = [[cost.of(lengths[i] for i in mb) for mb in rank] for rank in answer]
        return step_cost(costs, stages)

    best = min(answers, key=takes)
    return [[[places[i] for i in sorted(mb)] for mb in rank] for rank in best]


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
    """Return microbatches with the cheapest at both ends and the most expensive in the middle.

    A stage waits if a microbatch follows one that is much larger.
    """
    order = sorted(bins, key=lambda mb: (cost.of(lengths[i] for i in mb), mb))
    return order[::2] + order[1::2][::-1]


def deal(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Return the microbatches of each rank, an equal number for each, given their costs.

    Minimizes the most expensive share. Microbatches stay as they are, with their tokens and memory.

    Examples
    --------
    >>> deal([9.0, 1.0, 8.0, 2.0], 2)
    [[0, 1], [2, 3]]
    """
    if ranks < 1 or not costs or len(costs) % ranks:
        raise ValueError("the number of microbatches must be a multiple of the number of ranks")
    each = len(costs) // ranks
    return _Division(costs, [0] * len(costs), ranks, None, each, each).solve()


def assign(
    lengths: Sequence[int],
    ranks: int,
    *,
    microbatches: int = 1,
    max_tokens: int | None = None,
    cost: Cost | None = None,
) -> list[list[int]]:
    """Return the sequences of each rank, minimizing the cost of the most expensive rank.

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
    return _Division(prices, lengths, ranks, room, microbatches, len(lengths)).solve()


def pack(
    lengths: Sequence[int],
    microbatches: int,
    *,
    max_tokens: int | None = None,
    cost: Cost | None = None,
) -> list[list[int]]:
    """Return the sequences of each microbatch, minimizing the cost of the most expensive.

    `max_tokens` and `cost` are as in `assign`. Raises `InfeasibleError`.

    Examples
    --------
    >>> pack([9, 1, 5, 5], 2, max_tokens=10, cost=Cost(linear=1.0, quadratic=0.0))
    [[0, 1], [2, 3]]
    """
    cost = cost or Cost()
    prices = [cost.of_sequence(length) for length in lengths]
    return _Division(prices, lengths, microbatches, max_tokens, 1, len(lengths)).solve()
