"""What is tested every night, and not with every change."""

from __future__ import annotations

import os
from typing import Final, TypeVar

import hypothesis

T = TypeVar("T")

# Set by the nightly runs.
BY_NIGHT: Final = "PACELINE_NIGHTLY" in os.environ


def every_night(*variants: T) -> tuple[T, ...]:
    """Return variants of a test that are left out by day."""
    return variants if BY_NIGHT else ()


def drawn(by_night: int) -> hypothesis.settings:
    """Return the settings of a property of which a third of the examples is drawn by day."""
    return hypothesis.settings(
        max_examples=by_night if BY_NIGHT else -(-by_night // 3), deadline=None
    )
