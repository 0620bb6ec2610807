"""What is tested every night, and not with every change."""

from __future__ import annotations

import os
from typing import Final, TypeVar

import hypothesis
import pytest

T = TypeVar("T")

# Set by the nightly runs.
BY_NIGHT: Final = "PACELINE_NIGHTLY" in os.environ

# Marks a test that takes too long for every change.
by_night = pytest.mark.skipif(not BY_NIGHT, reason="every night")


def every_night(*variants: T) -> tuple[T, ...]:
    """Return variants of a test that are left out by day."""
    return variants if BY_NIGHT else ()


def drawn(by_night: int) -> hypothesis.settings:
    """Return the settings of a property of which a third of the examples is drawn by day."""
    return hypothesis.settings(
        max_examples=by_night if BY_NIGHT else -(-by_night // 3), deadline=None
    )
