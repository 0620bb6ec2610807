"""Even out what microbatches cost: which sequences a data-parallel rank gets, how it packs them.

Attention takes time with the square of a sequence's length, so that microbatches of as many tokens
take different times, and every rank waits for the slowest one. After a batch is drawn,

>>> batch = [[[4000, 96], [2048, 2048]], [[1024] * 4, [512] * 8]]
>>> even = balance(batch, cost=Cost(linear=1.0, quadratic=1e-3))

says where its sequences should go: ``even[rank][microbatch]`` is a list of `Place`, each the rank,
microbatch and position at which a sequence is now. No sequence is lost, cut or doubled, ranks keep
their number of microbatches, and none holds more tokens than the largest one did, or `max_tokens`.
The same batch gives the same answer on every rank and machine: ranks need not talk to agree.

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

# Turns of local improvement, and partial answers that an exact search looks at.
_TURNS = 400
_NODES = 4_000
# An answer that is so near to a bound is not improved.
_NEAR = 1e-3
# What differs by less is equal: sums of floats are not exact.
_EQUAL = 1e-12
# Exact searches are for as many pieces as a person could try.
_FEW = 16


class InfeasibleError(ValueError):
    """The sequences cannot be divided so: there are too few, or too many tokens."""


@dataclass(frozen=True)
class Cost:
    """What a microbatch takes: ``fixed + linear·Σs + quadratic·Σs²`` of its sequences.

    The unit is anything: seconds, or shares. By default the squares alone.
    """

    fixed: float = 0.0
    linear: float = 0.0
    quadratic: float = 1.0

    def of(self, lengths: Iterable[int]) -> float:
        """Return what a microbatch of such sequences takes."""
        return self.fixed + sum(self.of_sequence(length) for length in lengths)

    def of_sequence(self, length: int) -> float:
        """Return what one sequence adds to its microbatch."""
        return self.linear * length + self.quadratic * length * length

    @classmethod
    def fit(cls, microbatches: Iterable[tuple[Sequence[int], float]]) -> Cost:
        """Return the cost that fits measured microbatches best, by least squares.

        Parameters
        ----------
        microbatches : iterable of (lengths, time)

        Raises
        ------
        ValueError
            There are none.

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
        # What a sum cannot explain, or only with a negative price, is left to the others.
        choices = ([0, 1, 2], [1, 2], [0, 2], [2], [0, 1], [1], [0])
        found = (_least_squares(rows, chosen) for chosen in choices)
        fits = [item for item in found if item is not None and min(item[1]) >= 0]
        _, prices = min(fits, key=lambda item: item[0])
        return cls(*prices)


def _least_squares(
    rows: Sequence[tuple[float, float, float, float]], chosen: Sequence[int]
) -> tuple[float, tuple[float, float, float]] | None:
    """Return the squared error and the prices of some of (1, Σs, Σs²); None if alike."""
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
    """Where a sequence of a batch is."""

    rank: int
    microbatch: int
    sequence: int


def step_cost(costs: Sequence[Sequence[float]], stages: int = 1) -> float:
    """Return what a step takes whose microbatches cost so much, [rank][microbatch], on each stage.

    A pipeline of `stages` stages works through its microbatches one after the other, and the
    largest one passes through alone: Σ + (stages − 1)·max. All wait for the slowest rank.
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

    Sequences are divided anew over ranks and microbatches where the tokens of a microbatch allow
    it; whole microbatches change places where not. Whatever is shorter by `step_cost` is taken.

    Parameters
    ----------
    batch : nested sequence of int
        Lengths as [rank][microbatch][sequence]. Each microbatch has at least one.
    cost : Cost, optional
        What a microbatch takes; by default the sum of the squares.
    max_tokens : int, optional
        The most tokens of a microbatch, for its memory; by default those of the largest one.
    stages : int
        Pipeline stages.

    Raises
    ------
    ValueError
        A microbatch is empty, ranks have different numbers of them, or a length is negative.
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
        raise ValueError("every rank needs as many microbatches, at least one")
    if any(not microbatch for rank in batch for microbatch in rank):
        raise ValueError("a microbatch has no sequence")
    if any(length < 0 for rank in batch for microbatch in rank for length in microbatch):
        raise ValueError("a length is negative")
    return len(batch), counts.pop()


def _in_turn(bins: Sequence[list[int]], lengths: Sequence[int], cost: Cost) -> list[list[int]]:
    """Return microbatches with the cheapest first and last and the dearest in the middle.

    Where a microbatch follows a much larger one, a stage waits for it.
    """
    order = sorted(bins, key=lambda one: (cost.of(lengths[i] for i in one), one))
    return order[::2] + order[1::2][::-1]


def deal(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Return which microbatches each rank gets, as many each, so that the dearest share is cheap.

    Nothing is repacked: tokens and memory stay what they are.

    Parameters
    ----------
    costs : sequence of float
        Of each microbatch; their number is a multiple of `ranks`.
    ranks : int

    Raises
    ------
    ValueError
        They cannot be shared evenly.

    Examples
    --------
    >>> deal([9.0, 1.0, 8.0, 2.0], 2)
    [[0, 1], [2, 3]]
    """
    if ranks < 1 or not costs or len(costs) % ranks:
        raise ValueError("every rank gets as many microbatches: their number is no multiple")
    each = len(costs) // ranks
    return _Limits(costs, [0] * len(costs), ranks, None, each, each).solve()


def assign(
    lengths: Sequence[int],
    ranks: int,
    *,
    microbatches: int = 1,
    max_tokens: int | None = None,
    cost: Cost | None = None,
) -> list[list[int]]:
    """Return which sequences each rank gets, so that the dearest rank is as cheap as can be.

    Parameters
    ----------
    lengths : sequence of int
    ranks, microbatches : int
        Ranks, and microbatches that each has to fill, with one sequence at least.
    max_tokens : int, optional
        The most tokens of a microbatch; a rank gets no more than fit into its microbatches.
    cost : Cost, optional
        By default the sum of the squares.

    Raises
    ------
    InfeasibleError
        There are too few sequences, or too many tokens.

    Examples
    --------
    >>> assign([5, 4, 3, 3, 3], 2, cost=Cost(linear=1.0, quadratic=0.0))
    [[0, 1], [2, 3, 4]]
    """
    cost = cost or Cost()
    room = None if max_tokens is None else max_tokens * microbatches
    if max_tokens is not None and any(length > max_tokens for length in lengths):
        raise InfeasibleError("a sequence is longer than a microbatch may be")
    prices = [cost.of_sequence(length) for length in lengths]
    return _Limits(prices, lengths, ranks, room, microbatches, len(lengths)).solve()


def pack(
    lengths: Sequence[int],
    microbatches: int,
    *,
    max_tokens: int | None = None,
    cost: Cost | None = None,
) -> list[list[int]]:
    """Return the sequences of each microbatch, so that the dearest one is as cheap as can be.

    Parameters
    ----------
    lengths : sequence of int
    microbatches : int
    max_tokens : int, optional
        The most tokens of a microbatch.
    cost : Cost, optional
        By default the sum of the squares.

    Raises
    ------
    InfeasibleError
        There are too few sequences, or too many tokens.

    Examples
    --------
    >>> pack([9, 1, 5, 5], 2, max_tokens=10, cost=Cost(linear=1.0, quadratic=0.0))
    [[0, 1], [2, 3]]
    """
    cost = cost or Cost()
    prices = [cost.of_sequence(length) for length in lengths]
    return _Limits(prices, lengths, microbatches, max_tokens, 1, len(lengths)).solve()


class _Limits:
    """Pieces to be divided over bins: prices evenly, tokens within their room, counts in bounds.

    Parameters
    ----------
    prices, tokens : sequences
        Of each piece.
    bins : int
    room : int or None
        The most tokens of a bin; None where they do not matter.
    least, most : int
        Pieces of a bin.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what limits a division
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
        """Return the pieces of each bin, those of the first piece first."""
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
            raise InfeasibleError("no way was found to keep the tokens within their room")
        return sorted(sorted(one) for one in best)

    def _bound(self) -> float:
        """Return what the dearest bin costs at least."""
        prices = sorted(self.prices, reverse=True)
        bound = max(prices[0], sum(prices) / self.bins)
        # Of more pieces than bins two come together: the cheapest two of the dearest.
        for together in range(1, min(4, len(prices) // self.bins + 1)):
            first = together * self.bins
            if first < len(prices):
                bound = max(bound, sum(prices[first - together : first + 1]))
        return bound

    def _worst(self, answer: Sequence[Sequence[int]]) -> float:
        return max(sum(self.prices[i] for i in one) for one in answer)

    def _greedy(self, *, by_tokens: bool) -> list[list[int]] | None:
        """Put the dearest piece that is left into the cheapest bin that has room."""
        order = (
            sorted(self.order, key=lambda i: (-self.tokens[i], -self.prices[i], i))
            if by_tokens
            else self.order
        )
        found: list[list[int]] = [[] for _ in range(self.bins)]
        tokens = [0] * self.bins
        heap = [(0.0, b) for b in range(self.bins)]
        lacking = self.bins * self.least
        for position, piece in enumerate(order):
            left = len(order) - position
            passed = []
            chosen = None
            while heap:
                price, b = heapq.heappop(heap)
                full = len(found[b]) >= self.most
                fits = self.room is None or tokens[b] + self.tokens[piece] <= self.room
                needed = lacking < left or len(found[b]) < self.least
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
            lacking -= len(found[b]) < self.least
            found[b].append(piece)
            tokens[b] += self.tokens[piece]
            heapq.heappush(heap, (price + self.prices[piece], b))
        return found

    def _improved(self, answer: list[list[int]], bound: float) -> list[list[int]]:
        """Move and exchange pieces between the dearest bin and others, as long as that helps."""
        bins = [list(one) for one in answer]
        price = [sum(self.prices[i] for i in one) for one in bins]
        tokens = [sum(self.tokens[i] for i in one) for one in bins]
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
        """Return what the dearest bin gives to another one and takes for it, at best."""
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
        """Return the best division of few pieces: every one is tried that may be better."""
        limit = float("inf") if best is None else self._worst(best)
        bins: list[list[int]] = [[] for _ in range(self.bins)]
        price, tokens = [0.0] * self.bins, [0] * self.bins
        left = [0, *accumulate(self.prices[i] for i in reversed(self.order))][::-1]
        nodes = _NODES
        found = best

        def descend(position: int) -> None:
            nonlocal limit, nodes, found
            nodes -= 1
            if nodes < 0 or limit <= bound * (1 + _EQUAL):
                return
            if position == len(self.order):
                limit, found = max(price), [list(one) for one in bins]
                return
            lacking = sum(max(self.least - len(one), 0) for one in bins)
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
        return found
