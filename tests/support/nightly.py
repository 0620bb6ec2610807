"""Tests and examples that run every night only, not with every change."""

from __future__ import annotations

import os
from typing import Final, TypeVar

import hypothesis
import pytest

T = TypeVar("T")

# Set by nightly runs.
BY_NIGHT: Final = "PACELINE_NIGHTLY" in os.environ

# Marks a test that takes too long to run with every change.
by_night = pytest.mark.skipif(not BY_NIGHT, reason="every night")


def every_night(*variants: T) -> tuple[T, ...]:
    """Return variants of a test that run at night only."""
    return variants if BY_NIGHT else ()


def drawn(by_night: int) -> hypothesis.settings:
    """Return settings of a property test, with a third of the examples by day."""
    return hypothesis.settings(
        max_examples=by_night if BY_NIGHT else -(-by_night // 3), deadline=None
    )
