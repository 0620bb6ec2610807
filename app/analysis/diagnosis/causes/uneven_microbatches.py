"""Uneven numbers of microbatches: some DP ranks run more, and other ranks wait for them.

Dynamic batches are filled by tokens, so the number of a rank's microbatches depends on its data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, always
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding
from app.analysis.diagnosis.locations import JobFacts, RegionView, Where
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import FloatArray
from app.analysis.replay.engine.replay import NO_TRANSFER


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether a DP rank always runs more microbatches."""

    # A rank always has more if its mean number of microbatches exceeds the median rank's by this
    # factor, and by this many standard errors: a smaller difference also arises if the rank with
    # the most microbatches changes.
    more: float = 1.05
    errors: float = 4.0


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the ranks with more microbatches; without the cause all ranks run equally many.

    Without the cause, a rank that always has more microbatches gets the median number; a difference
    that changes ranks from step to step is spread over all ranks.
    """
    observation, layout = signs.observation, signs.observation.layout
    padding = layout.padding
    if padding is None:
        return None
    counts = padding.counts.astype(np.float64)  # (steps, dp)
    if layout.absent is not None:
        # A rank that recorded nothing counts as a rank with the typical number of microbatches.
        absent = layout.absent.all(axis=1)
        counts[:, absent] = np.median(counts[:, ~absent], axis=1, keepdims=True)
    if not (counts != counts[:, :1]).any():
        return None
    mean = counts.mean(axis=0)
    typical = float(np.median(mean))
    by_turns = THRESHOLDS.errors * float(np.mean(counts.std(axis=0))) / len(counts) ** 0.5
    apart = np.abs(mean - typical) > max((THRESHOLDS.more - 1) * typical, by_turns)
    usual, lasting = np.where(apart, mean, typical), apart & (mean > typical)
    own = np.where(lasting, usual - np.median(usual), 0.0)
    shared = (counts - own).mean(axis=1)
    weights = padding.weights(shared)[..., None]
    more = np.flatnonzero(lasting)
    more = more[np.argsort(-usual[more], kind="stable")]
    instead_ns = {
        node: np.where(weights[node] > 0, observation.recorded_ns[node] * weights[node], nothing)
        for node in np.flatnonzero(padding.microbatch >= 0).tolist()
        for nothing in [NO_TRANSFER if padding.transfers[node] else 0.0]
    }
    workers = tuple((int(dp), pp) for dp in more for pp in range(observation.layout.pp))
    return Finding(
        Change(instead_ns=instead_ns),
        (Evidence(_difference(counts, usual, more.tolist()), RegionView(view="map")),),
        where=Where(workers=workers),
    )


def _difference(counts: FloatArray, usual: FloatArray, more: list[int]) -> str:
    """Return the sentence that states how many microbatches the ranks run."""
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
    ranks = {dp for dp, _ in workers}
    if len(ranks) == 1:
        return f"DP rank {workers[0][0]} runs more microbatches than the others"
    return f"{len(ranks)} DP ranks run more microbatches than the others"


UNEVEN_MICROBATCHES: Final = CauseKind(
    name="uneven_microbatches",
    title="Uneven numbers of microbatches",
    word="microbatches",
    sign="Some DP ranks run more microbatches in a step than others, which wait for them.",
    blames_machine=False,
    cannot_judge=lambda _signs: None,
    because=_because,
    find=_find,
    remedy=always(
        Remedy(
            "share_microbatches",
            "Give all DP ranks equally many microbatches",
            "Replayed with each DP rank running as many microbatches as typical: let the sampler "
            "deal them out by their tokens over all DP ranks, not within each of them.",
        )
    ),
    phase=Phase.WITHIN_WORKERS,
)
