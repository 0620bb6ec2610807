"""Microbatches that take different times on all stages alike, at no fixed place."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.diagnosis.finding import SEQUENCE_LENGTHS, Change, Evidence, Finding
from app.analysis.diagnosis.observation import Observation, SingleArray
from app.analysis.diagnosis.usual import Usual
from app.analysis.trace.model import ABSENT, BACKWARD_COMPUTE
from app.analysis.whatif.layout import FloatArray

_MIN_POINTS: Final = 8
# Metadata are their sender's: a length beyond this is none.
_LONGEST: Final = 1e12


def find_sequence_lengths(observation: Observation, usual: Usual) -> Finding | None:
    """Return the imbalance; without it every microbatch takes the mean time of its stage."""
    if not usual.lengths_differ:
        return None
    times: dict[int, FloatArray] = {}
    for name, passes in observation.passes.items():
        factor = usual.microbatch[name]
        even = factor.mean() / factor
        for nodes in passes.nodes:
            times.update(zip(nodes.tolist(), even, strict=True))
    factor = usual.microbatch[BACKWARD_COMPUTE]
    low, high = np.quantile(factor / factor.mean(), (0.05, 0.95))
    evidence = [
        Evidence(
            f"Forward and backward of a microbatch rise together on all stages: r = "
            f"{usual.correlation:.2f}",
            {"view": "scatter"},
        ),
        Evidence(
            f"Nine of ten microbatches take {low:.2f}× to {high:.2f}× the mean, on all DP ranks "
            "and in all steps",
            {"view": "map"},
        ),
    ]
    squares = _against_squares(observation, factor)
    if squares is not None:
        evidence.append(
            Evidence(
                f"Their times follow Σs² of the recorded sequence lengths: r = {squares:.2f}",
                {"view": "scatter"},
            )
        )
    # The points are in the report already, as its sample of microbatches.
    figure = {"kind": "scatter"}
    return Finding(SEQUENCE_LENGTHS, Change(times=times), tuple(evidence), figure=figure)


def _against_squares(observation: Observation, factor: SingleArray) -> float | None:
    """Correlate times with Σs² of the recorded lengths; None where there are too few."""
    recorded = observation.trace.meta.extra.get("sequence_lengths")
    if not isinstance(recorded, dict):
        return None
    passes, nodes = observation.passes[BACKWARD_COMPUTE], observation.layout.nodes
    microbatch = nodes.mb[passes.nodes[0]]
    points: list[tuple[float, float]] = []
    for index, step in enumerate(observation.layout.steps.tolist()):
        lanes = recorded.get(str(step))
        if not isinstance(lanes, list):
            continue
        for dp, lengths in enumerate(lanes[: observation.layout.dp]):
            for position, number in enumerate(microbatch.tolist()):
                squares = _sum_of_squares(lengths, number)
                if squares is not None:
                    points.append((squares, float(factor[position, index, dp])))
    if len(points) < _MIN_POINTS:
        return None
    squares_of, times_of = np.array(points).T
    if squares_of.std() == 0 or times_of.std() == 0:
        return None
    return float(np.corrcoef(squares_of, times_of)[0, 1])


def _sum_of_squares(lengths: object, microbatch: int) -> float | None:
    """Return Σs² of a microbatch, given what was recorded of its DP rank; None if not lengths."""
    if not isinstance(lengths, list) or not ABSENT < microbatch < len(lengths):
        return None
    sequences = lengths[microbatch]
    if not isinstance(sequences, list) or not all(_is_length(s) for s in sequences):
        return None
    return float(sum(s * s for s in sequences))


def _is_length(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _LONGEST
