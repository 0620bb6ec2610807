"""Divide pieces over bins with the least maximum cost: greedily, by exchanges, exactly if few."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate

# Rounds of local improvement, and nodes of an exact search.
_TURNS = 400
_NODES = 4_000
# A division this close to the bound is not improved.
_NEAR = 1e-3
# Smaller differences are rounding errors.
_EQUAL = 1e-12
# The most pieces for an exact search.
_FEW = 16


class InfeasibleError(ValueError):
    """The sequences cannot be divided: too few sequences, or too many tokens."""


class Limits:
    """Pieces with prices and tokens, and the limits of a bin.

    A bin has at most `room` tokens, unless that is None, and `least` to `most` pieces.
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
        return sorted(sorted(one) for one in best)

    def _bound(self) -> float:
        """Return a lower bound of the most expensive bin."""
        prices = sorted(self.prices, reverse=True)
        bound = max(prices[0], sum(prices) / self.bins)
        # With more pieces than bins, some bin has two of the most expensive ones.
        for together in range(1, min(4, len(prices) // self.bins + 1)):
            first = together * self.bins
            if first < len(prices):
                bound = max(bound, sum(prices[first - together : first + 1]))
        return bound

    def _worst(self, answer: Sequence[Sequence[int]]) -> float:
        return max(sum(self.prices[i] for i in one) for one in answer)

    def _greedy(self, *, by_tokens: bool) -> list[list[int]] | None:
        """Put the most expensive remaining piece into the cheapest bin that has room."""
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
        """Move and exchange pieces from and to the most expensive bin while it helps."""
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
        """Return the best exchange of the most expensive bin: other bin, pieces given and taken."""
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
