"""The types of fields that several parts of a report have."""

from __future__ import annotations

from typing import TypeAlias

# The lower and the upper end of a 95 % bootstrap interval over the analyzed steps.
Interval: TypeAlias = tuple[float, float]
Numbers: TypeAlias = tuple[float, ...]
# By DP rank, then by stage.
ByCell: TypeAlias = tuple[tuple[float, ...], ...]
PartialByCell: TypeAlias = tuple[tuple[float | None, ...], ...]
CountByCell: TypeAlias = tuple[tuple[int, ...], ...]
