"""Sequence-length imbalance: microbatches differ in time, and equally on all stages."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Plan, always, needs_comparable_stages
from app.analysis.diagnosis.finding import (
    Change,
    Evidence,
    Finding,
    Lengths,
    Spread,
    Squares,
    Uncertainty,
)
from app.analysis.diagnosis.locations import FigureView, RegionView
from app.analysis.diagnosis.microbatch_effects import Effects
from app.analysis.diagnosis.observation import (
    Observation,
    sample,
)
from app.analysis.diagnosis.recorded_lengths import recorded_lengths
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import FloatArray, SingleArray
from app.analysis.trace.model import BACKWARD_COMPUTE
from app.analysis.wording import percent

_BINS: Final = 40  # bars of the histogram
_DRAWN: Final = 240  # points of the scatter plot, about


def _find(signs: Signs) -> Finding | None:
    """Return the imbalance; without it every microbatch takes the mean time of its stage."""
    observation, effects = signs.observation, signs.effects
    if effects is None or not effects.difference.differ:
        return None
    times: dict[int, FloatArray] = {}
    for name, passes in observation.passes.items():
        for stage, nodes in enumerate(passes.nodes):
            factor = effects.microbatches[name].of_stage(stage)
            times.update(zip(nodes.tolist(), factor.mean() / factor, strict=True))
    factor = effects.microbatches[BACKWARD_COMPUTE].factor
    several = observation.layout.pp > 1
    evidence = [
        Evidence(
            "Forward and backward of a microbatch rise together on all stages: r = "
            f"{effects.difference.correlation:.2f}"
            + (", of its medians over them" if several else ""),
            RegionView(view="scatter"),
        ),
        Evidence(_how_different(effects, factor), FigureView(part="spread")),
    ]
    drawn = None
    points = _against_squares(observation, factor)
    if points is not None:
        evidence.append(
            Evidence(
                "Their times follow Σs² of the recorded sequence lengths: r = "
                f"{np.corrcoef(*points)[0, 1]:.2f}",
                FigureView(part="squares"),
            )
        )
        squares, relative = points[:, :: -(-points.shape[1] // _DRAWN)]
        drawn = Squares(tuple(squares.tolist()), tuple(relative.tolist()))
    counts, edges = np.histogram(sample(factor) / factor.mean(), _BINS)
    spread = Spread(float(edges[0]), float(edges[-1]), tuple(counts.tolist()))
    work = factor.mean(axis=(0, 2), dtype=np.float64)
    return Finding(
        Change(times=times),
        tuple(evidence),
        figure=Lengths(spread=spread, squares=drawn),
        uncertainty=Uncertainty(work=work / work.mean()),
    )


def _how_different(effects: Effects, factor: SingleArray) -> str:
    """Return the sentence that states how much the times of microbatches differ."""
    if effects.difference.rare:
        values = sample(factor)
        typical_factor = float(np.median(values))
        long = values[values > effects.difference.long * typical_factor]
        if len(long):
            return (
                f"{percent(len(long) / len(values), 0)} of the microbatches take "
                f"{np.median(long) / typical_factor:.1f}× as long as the median"
            )
    low, high = np.quantile(factor / factor.mean(), (0.05, 0.95))
    return (
        f"Nine of ten microbatches take {low:.2f}× to {high:.2f}× the mean, on all DP ranks "
        "and in all steps"
    )


def _against_squares(observation: Observation, factor: SingleArray) -> FloatArray | None:
    """Return each microbatch's Σs² and its time ÷ the mean, shape (2, microbatches).

    None if too few lengths are recorded, or all lengths are equal.
    """
    lengths = recorded_lengths(observation)
    if lengths is None:
        return None
    points = np.stack([lengths.squares, lengths.of(factor)])
    if (points.std(axis=1) == 0).any():
        return None
    points[1] /= factor.mean()
    return points


SEQUENCE_LENGTHS: Final = CauseKind(
    name="sequence_length_imbalance",
    title="Sequence-length imbalance",
    word="lengths",
    sign="Forward and backward of a microbatch are long or short together on all stages, on every "
    "DP rank and in all steps: all of them differ, or a few are far longer.",
    blames_machine=False,
    cannot_judge=needs_comparable_stages,
    because=always("microbatches differ in length, on all workers alike"),
    find=_find,
    plan=Plan.BALANCE_MICROBATCHES,
    everywhere=True,
)
