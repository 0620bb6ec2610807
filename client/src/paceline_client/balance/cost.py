"""The cost of a microbatch, and its fit to measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
        """Return what one sequence adds to its microbatch."""
        return self.linear * length + self.quadratic * length * length

    @classmethod
    def fit(cls, microbatches: Iterable[tuple[Sequence[int], float]]) -> Cost:
        """Return the cost that fits measured microbatches, (lengths, time), best by least squares.

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
        # Terms that cannot be determined, or only with a negative price, are left out.
        choices = ([0, 1, 2], [1, 2], [0, 2], [2], [0, 1], [1], [0])
        found = (_least_squares(rows, chosen) for chosen in choices)
        fits = [item for item in found if item is not None and min(item[1]) >= 0]
        _, prices = min(fits, key=lambda item: item[0])
        return cls(*prices)


def _least_squares(
    rows: Sequence[tuple[float, float, float, float]], chosen: Sequence[int]
) -> tuple[float, tuple[float, float, float]] | None:
    """Return the squared error and the prices of some of (1, Σs, Σs²); None if collinear."""
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
