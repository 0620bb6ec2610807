"""Comparison of promises for one job, of either physics."""

from __future__ import annotations

from tests.oracles.physics.draw import FAULTS, MIXED_FAULTS
from tests.referee.fixes import independent, own
from tests.referee.fixes.promise import Refereed


def referee(seed: int, healthy: float, only: str | None, physics: str) -> Refereed:
    """Compare the fixes of a seed's job, of one physics or alternately of both."""
    if only is not None:
        physics = "independent" if only in {*FAULTS, *MIXED_FAULTS} else "own"
    if physics == "both":
        physics = "own" if seed % 2 else "independent"
    if physics == "own":
        return own.referee(seed, healthy, only)
    return independent.referee(seed, healthy, only)
