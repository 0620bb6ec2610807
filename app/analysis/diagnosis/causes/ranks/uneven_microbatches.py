"""DP ranks that run more microbatches than others, which wait for them where gradients are reduced.

Dynamic batches are filled by tokens, and each rank gets as many as its own data make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, Turn
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation
from app.analysis.diagnosis.places import Hosts, JobFacts, RegionView, Where
from app.analysis.diagnosis.signs import Signs
from app.analysis.replay.adaptations.rows.merged_microbatches import microbatches_of
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.trace.model import FORWARD_COMPUTE


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether a DP rank always runs more microbatches."""

    # On average it runs this many times as many as the median one, and more than that by this many
    # standard errors.
    more: float = 1.05
    errors: float = 4.0


THRESHOLDS: Final = Thresholds()


def _counts(observation: Observation) -> FloatArray | None:
    """Return the microbatches by step and DP rank; None where they were not merged in the replay.

    Where all ranks run as many each is an operation of the layout.
    """
    layout = observation.layout
    if layout.pp > 1 or layout.dp == 1 or len(layout.of(FORWARD_COMPUTE, 0)) != 1:
        return None
    counts = microbatches_of(observation.trace, layout.ranks[:, 0], layout.steps)
    return counts.astype(np.float64) if (counts != counts[:, :1]).any() else None


def _find(signs: Signs) -> Finding | None:
    """Return what differs; without it ranks run what is typical, and by turns as many as all do."""
    observation = signs.observation
    counts = _counts(observation)
    if counts is None:
        return None
    usual, lasting = _usual(counts)
    # what a rank always has more than typical is its own; the rest is shared out
    own = np.where(lasting, usual - np.median(usual), 0.0)
    # a rank may have none in a step
    share = 1 - (counts - own).mean(axis=1, keepdims=True) / np.maximum(counts, 1.0)
    nodes = [n for name in COMPUTATIONS for n in observation.computations(name, 0)]
    more = np.flatnonzero(lasting)
    more = more[np.argsort(-usual[more], kind="stable")]
    return Finding(
        Change(less_ns={node: observation.recorded_ns[node] * share for node in nodes}),
        (Evidence(_difference(counts, usual, more.tolist()), RegionView(view="map")),),
        where=Where(workers=tuple((int(dp), 0) for dp in more)),
    )


def _usual(counts: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return how many microbatches each rank runs, but for turns, and which always run more."""
    mean = counts.mean(axis=0)
    typical = float(np.median(mean))
    by_turns = THRESHOLDS.errors * float(np.mean(counts.std(axis=0))) / len(counts) ** 0.5
    apart = np.abs(mean - typical) > max((THRESHOLDS.more - 1) * typical, by_turns)
    return np.where(apart, mean, typical), apart & (mean > typical)


def _difference(counts: FloatArray, usual: FloatArray, more: list[int]) -> str:
    """Say how many microbatches ranks run."""
    typical = float(np.median(usual))
    fewer = np.flatnonzero(usual < typical)
    if not more and len(fewer):
        return (
            f"DP rank {fewer[0]} runs {usual[fewer[0]]:.3g} microbatches a step, the others "
            f"{typical:.3g}"
        )
    if not more:
        low, high = int(counts.min()), int(counts.max())
        most = counts.max(axis=1).sum() / counts.mean(axis=1).sum()
        return (
            f"DP ranks run {low} to {high} microbatches a step, now one and now another most: "
            f"{most:.2f}× as many as they do on average"
        )
    return (
        f"DP rank {more[0]} runs {usual[more[0]]:.3g} microbatches a step, the others {typical:.3g}"
    )


def _because(cause: Cause, job: JobFacts) -> str:  # noqa: ARG001 - no host is to blame
    workers = cause.where.workers
    if not workers:
        return "DP ranks run different numbers of microbatches in a step"
    if len(workers) == 1:
        return f"DP rank {workers[0][0]} runs more microbatches than the others"
    return f"{len(workers)} DP ranks run more microbatches than the others"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:  # noqa: ARG001 - no host is to blame
    return Remedy(
        "share_microbatches",
        "Give all DP ranks equally many microbatches",
        "Replayed with each DP rank running as many microbatches as typical: let the sampler deal "
        "them out by their tokens over all DP ranks, not within each of them.",
    )


UNEVEN_MICROBATCHES: Final = CauseKind(
    name="uneven_microbatches",
    title="Uneven numbers of microbatches",
    word="microbatches",
    sign="Some DP ranks run more microbatches in a step than others, which wait for them.",
    blames_machine=False,
    cannot_judge=lambda _signs: None,
    because=_because,
    find=_find,
    remedy=_remedy,
    turn=Turn.WITHIN_WORKERS,
)
