"""What the figures of a fleet take from a report (the paper, sections 4 and 5), by session."""

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
class SessionFigures:
    """What a session with a verdict is in the figures of its fleet."""

    gpus: int
    stages: int
    context: int | None  # the longest sequence, tokens; None where metadata do not say
    slowdown: float  # S, which the paper's figures are of
    # GPU-hours that are lost in each hour of running, against the headline's reference.
    lost_each_hour: float
    measured_s: float  # how long the analyzed steps took, seconds
    # m_w, m_s: by removal; None where under 1 % of a step is lost
    m_w: float | None
    m_s: float | None
    correlation: float | None  # Pearson's r of forward and backward times
    waste: Mapping[str, float]  # share of the step time that each of `KINDS` wastes alone
    steps: tuple[float, ...]  # evenly spaced quantiles of a step's slowdown ÷ S
    # GPU-hours that each cause costs in each hour of running; they may overlap.
    causes: Mapping[str, float]


def figures_of(report: Report, metadata: Mapping[str, Any]) -> SessionFigures | None:
    """Return what a report is in the figures of its fleet; None without a verdict.

    Parameters
    ----------
    metadata : mapping
        Of the session, as it was sent.
    """
    if not report.fidelity.verdict:
        return None
    steps = np.quantile(np.asarray(report.step_slowdown), np.linspace(0, 1, QUANTILES))
    waste = report.waste_by_optype
    causes: dict[str, float] = {}
    for cause in report.causes:
        cost = report.lost_gpu_hours_per_hour * max(0.0, cause.contribution or 0.0)
        causes[cause.cause] = causes.get(cause.cause, 0.0) + cost
    return SessionFigures(
        gpus=report.sizes.world,
        stages=report.sizes.pp,
        context=longest_sequence(metadata),
        slowdown=report.slowdown,
        lost_each_hour=report.lost_gpu_hours_per_hour,
        measured_s=sum(report.step_times.recorded),
        m_w=report.m_w.rem,
        m_s=report.m_s.rem,
        correlation=report.fb_correlation.pearson,
        waste={
            kind: sum(max(0.0, waste.get(name, 0.0)) for name in names)
            for kind, names in KINDS.items()
        },
        steps=tuple((steps / report.slowdown).tolist()),
        causes=causes,
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
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left.extend(one.values())
        elif isinstance(one, (list, tuple)):
            left.extend(one)
        elif (length := _length(one)) is not None:
            found.append(length)
    return found


def _length(value: object) -> int | None:
    """Return a length, where a value is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 < value < _FURTHEST else None
