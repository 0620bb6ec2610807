"""Times of two functions that run in turns, and the peak memory of a process."""

from __future__ import annotations

import gc
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pairs:
    """Times of pairs of runs.

    Parameters
    ----------
    ours_s, base_s : tuple of float
        Seconds of each pair's runs.
    """

    ours_s: tuple[float, ...]
    base_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Return the median over the pairs of ours to base."""
        return statistics.median(
            ours / base for ours, base in zip(self.ours_s, self.base_s, strict=True)
        )

    @property
    def spread(self) -> tuple[float, float]:
        """Return the quartiles of the pairs' ratios."""
        ratios = [ours / base for ours, base in zip(self.ours_s, self.base_s, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return low, high


def time_pairs(
    ours: Callable[[int], object],
    base: Callable[[int], object],
    *,
    pairs: int,
    at_least_s: float = 0.0,
) -> Pairs:
    """Run both functions in turns, each first equally often, after one unmeasured pair.

    Parameters
    ----------
    ours, base : callable
        Called with the number of the pair; the unmeasured one is -1.
    pairs : int
        Minimum number of pairs.
    at_least_s : float
        Minimum duration, s, so that short functions are measured often.
    """
    ours(-1)
    base(-1)
    ours_s: list[float] = []
    base_s: list[float] = []
    while len(ours_s) < pairs or sum(ours_s) + sum(base_s) < at_least_s:
        number = len(ours_s)
        if number % 2:
            base_s.append(_time(base, number))
            ours_s.append(_time(ours, number))
        else:
            ours_s.append(_time(ours, number))
            base_s.append(_time(base, number))
    return Pairs(tuple(ours_s), tuple(base_s))


def _time(run: Callable[[int], object], number: int) -> float:
    gc.collect()
    start = time.perf_counter()
    result = run(number)
    elapsed = time.perf_counter() - start
    del result
    return elapsed


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage is not used: on Linux its value survives exec, so that it would be the parent's
        # peak.
        match = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
