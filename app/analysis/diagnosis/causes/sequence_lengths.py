"""Microbatches that take different times on all stages alike, at no fixed place."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, needs_like_stages
from app.analysis.diagnosis.figures import Lengths, Spread, Squares
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.observation import Observation, SingleArray, sample
from app.analysis.diagnosis.places import FigureView, Hosts, JobFacts, RegionView
from app.analysis.diagnosis.signs import Signs
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.trace.model import ABSENT, BACKWARD_COMPUTE

_MIN_POINTS: Final = 8
# Bars and points of the pictures.
_BINS: Final = 40
_DRAWN: Final = 240
# Metadata are their sender's: a length beyond this is none.
_LONGEST: Final = 1e12


def _find(signs: Signs) -> Finding | None:
    """Return the imbalance; without it every microbatch takes the mean time of its stage."""
    observation, usual = signs.observation, signs.usual
    if usual is None or not usual.lengths_differ:
        return None
    times: dict[int, FloatArray] = {}
    for name, passes in observation.passes.items():
        factor = usual.microbatch[name]
        even = factor.mean() / factor
        for nodes in passes.nodes:
            times.update(zip(nodes.tolist(), even, strict=True))
    factor = usual.microbatch[BACKWARD_COMPUTE]
    low, high = np.quantile(factor / factor.mean(), (0.05, 0.95))
    several = observation.layout.pp > 1
    evidence = [
        Evidence(
            "Forward and backward of a microbatch rise together on all stages: r = "
            f"{usual.correlation:.2f}" + (", of its medians over them" if several else ""),
            RegionView(view="scatter"),
        ),
        Evidence(
            f"Nine of ten microbatches take {low:.2f}× to {high:.2f}× the mean, on all DP ranks "
            "and in all steps",
            FigureView(part="spread"),
        ),
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
    figure = Lengths(spread=_spread(factor), squares=drawn)
    return Finding(Change(times=times), tuple(evidence), figure=figure)


def _spread(factor: SingleArray) -> Spread:
    """Count microbatches by their time over the mean."""
    counts, edges = np.histogram(sample(factor) / factor.mean(), _BINS)
    return Spread(float(edges[0]), float(edges[-1]), tuple(counts.tolist()))


def _against_squares(observation: Observation, factor: SingleArray) -> FloatArray | None:
    """Return Σs² of the recorded lengths and times over their mean; None where there are too few.

    An array of shape (2, microbatches).
    """
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
    found: FloatArray = np.array(points).T
    if (found.std(axis=1) == 0).any():
        return None
    found[1] /= factor.mean()
    return found


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


def _because(cause: Cause, job: JobFacts) -> str:
    del cause, job
    return "microbatches differ in length, on all workers alike"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    del cause, hosts
    return Remedy(
        "even_microbatches",
        "Even out the sequence lengths of microbatches",
        "Replayed with every microbatch taking the mean time: the most that dividing sequences "
        "better over DP ranks and microbatches can bring.",
    )


SEQUENCE_LENGTHS: Final = CauseKind(
    name="sequence_length_imbalance",
    title="Sequence-length imbalance",
    word="lengths",
    sign="Forward and backward of a microbatch are long or short together on all stages, on every "
    "DP rank and in all steps.",
    cannot_judge=needs_like_stages,
    because=_because,
    find=_find,
    remedy=_remedy,
)
