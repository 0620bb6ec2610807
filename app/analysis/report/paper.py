"""What the figures of a fleet take from a report (the paper, sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from app.analysis.report.document import Report

# Kinds of operations, as the paper's figure 5 has them, and the names that reports use.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "forward computing": ("forward-compute",),
    "backward computing": ("backward-compute",),
    "pipeline transfers": ("forward-pp-comm", "backward-pp-comm"),
    "data-parallel collectives": ("params-all-gather", "grads-reduce-scatter"),
}
# Of a session's steps: enough to draw their distribution, however many there are.
QUANTILES: Final = 21
# Metadata that say how long sequences may be, and how long the recorded ones were.
_LONGEST: Final = "seq_length"
_RECORDED: Final = "sequence_lengths"
_FURTHEST: Final = 2**31


@dataclass(frozen=True, slots=True)
class PaperMeasures:
    """What the figures of a fleet are drawn from."""

    # m_w, m_s: by removal; None where under 1 % of a step is lost
    m_w: float | None
    m_s: float | None
    fb_correlation: float | None  # Pearson's r of forward and backward times
    context: int | None  # the longest sequence, tokens; None where metadata do not say
    # share of the step time that each of `KINDS` wastes alone; empty without a verdict
    waste: Mapping[str, float]
    # evenly spaced quantiles of a step's slowdown ÷ S; empty without a verdict
    steps: tuple[float, ...]


def measures_of(report: Report, metadata: Mapping[str, Any]) -> PaperMeasures:
    """Return what the figures of a fleet take from a report.

    Parameters
    ----------
    metadata : mapping
        Of the session, as it was sent.
    """
    waste: dict[str, float] = {}
    steps: tuple[float, ...] = ()
    if report.fidelity.verdict:
        of = report.waste_by_optype
        waste = {
            kind: sum(max(0.0, of.get(name, 0.0)) for name in names)
            for kind, names in KINDS.items()
        }
        quantiles = np.quantile(np.asarray(report.step_slowdown), np.linspace(0, 1, QUANTILES))
        steps = tuple((quantiles / report.slowdown).tolist())
    return PaperMeasures(
        m_w=report.m_w.rem,
        m_s=report.m_s.rem,
        fb_correlation=report.fb_correlation.pearson,
        context=longest_sequence(metadata),
        waste=waste,
        steps=steps,
    )


def longest_sequence(metadata: Mapping[str, Any]) -> int | None:
    """Return how long sequences may be, or else how long the longest recorded one was, tokens.

    Examples
    --------
    >>> longest_sequence({"seq_length": 4096})
    4096
    >>> longest_sequence({"sequence_lengths": {"7": [[[120, 8], [64]]]}})
    120
    >>> longest_sequence({}) is None
    True
    """
    stated = _length(metadata.get(_LONGEST))
    if stated is not None:
        return stated
    return max(_lengths(metadata.get(_RECORDED)), default=None)


def _lengths(value: object) -> list[int]:
    """Return all lengths in what was recorded, however deep: metadata may hold anything."""
    found: list[int] = []
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, (list, tuple)):
            pending.extend(one)
        elif (length := _length(one)) is not None:
            found.append(length)
    return found


def _length(value: object) -> int | None:
    """Return a length, where a value is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 < value < _FURTHEST else None
