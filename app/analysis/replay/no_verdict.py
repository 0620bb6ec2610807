"""Reasons against a verdict that a small discrepancy of the replay does not show.

Waiting that the recording does not separate from computing (computations of DP peers that begin
apart and regularly end together), files of different attempts of a job, and a job that would take
longer without stragglers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import sampled_times
from app.analysis.replay.clock_alignment import PPM, RankClocks
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import Replayed
from app.analysis.wording import name_list

# ---- Collectives inside of computations that are not recorded ----------------------------------
# Where computations of DP peers regularly end together although they began apart, something in them
# waits for the others. Then the time of a computation is not its rank's own, and no replay can say
# whose it is, however near it is to the recording.


# Computations begin apart from this share of their time on…
_APART: Final = 0.1
# …and end together when they are by this share of that apart at their end.
_TOGETHER: Final = 0.2
# This share of those that begin apart does so, and there are at least that many.
_REGULARLY: Final = 0.8
_LEAST_CASES: Final = 10


def find_hidden_collectives(layout: Layout) -> Sign | None:
    """Return where computations wait inside for something that is not recorded; None elsewhere."""
    if layout.dp == 1:
        return None
    if layout.missing is not None:
        return None
    nodes = layout.nodes
    computes = np.flatnonzero(layout.of_types(*COMPUTE))
    start, duration = sampled_times(layout, computes)
    end = start + duration
    began = start.max(axis=0) - start.min(axis=0)
    ended = end.max(axis=0) - end.min(axis=0)
    apart = began > _APART * np.mean(duration, axis=0)
    together = apart & (ended <= _TOGETHER * began)
    kind = nodes.pp[computes].astype(np.int64) * len(layout.op_names) + nodes.op[computes]
    cases = np.bincount(kind, apart.sum(axis=1))
    hidden = np.bincount(kind, together.sum(axis=1))
    found = (cases >= _LEAST_CASES) & (hidden >= _REGULARLY * cases)
    if not found.any():
        return None
    where = []
    for number in np.flatnonzero(found).tolist():
        stage, code = divmod(number, len(layout.op_names))
        where.append(f"{layout.op_names[code]} on stage {stage}")
    return Sign(tuple(where), float((hidden[found] / cases[found]).mean()))


# ---- Recordings of different attempts of a job, as files that are named by rank overwrite each oth
#
# Clocks may be apart by any time, and then their ends agree once they are aligned. Two attempts are
# apart by more than a session lasts, and each has steps of its own length: aligned like clocks, one
# runs faster than the other than clocks do, or ends stay apart.


# A time service slews a clock by no more than this (ntpd's limit).
FASTEST_PPM: Final = 500.0
# What clocks run apart in a session is believed where it is that many times what ends are apart by.
ABOVE_RESIDUAL: Final = 5.0
# Ends of one session are less apart than this share of a step, once clocks are aligned.
RESIDUAL_OF_STEP: Final = 0.005
NS_A_SECOND: Final = 1e9


def attempts_apart(layout: Layout, clocks: RankClocks) -> tuple[list[int], float] | None:
    """Return the ranks that were recorded after the others, and by how many seconds.

    None where the clocks can be those of one session.
    """
    if clocks.drift_ppm is None or len(layout.steps) < 2:  # noqa: PLR2004 - nothing runs apart
        return None
    offsets = clocks.offsets_ns.ravel()
    order = np.argsort(offsets)
    gaps = np.diff(offsets[order])
    span_ns = float(np.ptp(layout.begin_ns))
    if not len(gaps) or gaps.max() <= span_ns:
        return None
    step_ns = float(median((layout.start_ns + layout.duration_ns).max(axis=(0, 2))))
    span_ns += step_ns
    if gaps.max() <= span_ns:
        return None
    residual_ns = float(clocks.residual_ns.max())
    ppm = float(np.ptp(clocks.drift_ppm))
    runs_apart = ppm > FASTEST_PPM and ppm / PPM * span_ns > ABOVE_RESIDUAL * residual_ns
    if not runs_apart and residual_ns <= RESIDUAL_OF_STEP * step_ns:
        return None
    later = order[int(gaps.argmax()) + 1 :]
    ranks = sorted(int(rank) for rank in layout.ranks.ravel()[later])
    return ranks, float(gaps.max()) / NS_A_SECOND


# ---- What keeps a recording from having a verdict, however near its replay is to it ------------
# Waiting that it does not tell from computing, so that no worker can be blamed; recordings that are
# not of one session; a job that would take longer without stragglers.


# A job that is slower without stragglers by more than this is told wrong; by less, its ideal, which
# is a mean and a median, is off a little.
LEAST_SLOWDOWN: Final = 0.97


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why there is no verdict, however near the replay is to the recording."""

    verdict: str  # in a sentence, after "No verdict: "
    reason: str  # with what would help
    timed: bool = True  # whether its times tell all the same what passes between steps


NO_COLLECTIVES: Final = Unseen(
    verdict="waiting cannot be told from computing, no data-parallel collective is recorded",
    reason=(
        "No collective of the data-parallel ranks is recorded, so waiting cannot be told from "
        "computing here: pass the wrapped model to attach(model=…), or record what the ranks "
        "exchange, with its own start and end."
    ),
)


def unseen_of(replayed: Replayed) -> Unseen | None:
    """Return why no worker can be blamed; None where a verdict is possible."""
    apart = attempts_apart(replayed.layout, replayed.clocks)
    return unseen_waiting(replayed.layout) if apart is None else _two_attempts(*apart)


def _two_attempts(ranks: list[int], by_s: float) -> Unseen:
    who = name_list("rank", [str(rank) for rank in ranks])
    were = "was" if len(ranks) == 1 else "were"
    return Unseen(
        verdict=(
            f"these recordings are of no one session, {who} {were} recorded {by_s:,.1f} s "
            "after the others"
        ),
        reason=(
            f"{who.capitalize()} {were} recorded {by_s:,.1f} s after the others, in steps of "
            "another length: these are recordings of two attempts. Analyze the files of one "
            "attempt."
        ),
        timed=False,
    )


def faster_with_stragglers(replayed: Replayed, slowdown: float) -> Unseen | None:
    """Return why a slowdown is no verdict: no job is faster with stragglers. None where it is.

    Says whether the recording is at fault, or else the replay.
    """
    if slowdown >= LEAST_SLOWDOWN:
        return None
    sizes = f"DP {replayed.layout.dp} × PP {replayed.layout.pp}"
    signs = []
    if replayed.clamped:
        signs.append(f"{replayed.clamped:,} transfers end before they begin")
    if replayed.clocks.settings:
        signs.append("clocks were set")
    if replayed.impossible:
        signs.append(f"{len(replayed.impossible):,} durations are impossible")
    if replayed.recreated.total:
        signs.append(f"{replayed.recreated.total:,} operations are missing")
    why = (
        f"The recording is at fault, as far as is known: {', '.join(signs)}."
        if signs
        else f"Either the job is not divided into {sizes}, then give its sizes, or the replay "
        "is at fault, then please report it: nothing else in the recording explains it."
    )
    return Unseen(
        verdict=f"without stragglers the job would take longer, {slowdown:.2f}×, which cannot be",
        reason=f"Replayed without stragglers the job takes longer ({slowdown:.2f}×), which cannot "
        f"be. {why}",
        timed=False,
    )


def unseen_waiting(layout: Layout) -> Unseen | None:
    """Return why it is not known who waits; None where it is.

    Without a pipeline, data-parallel ranks meet in collectives alone. In one, transfers show who
    waits within each of its replicas.
    """
    exchanged = layout.of_types(*(name for name in DP_COLLECTIVES if name in layout.op_names))
    if layout.pp == 1 and layout.dp > 1 and not exchanged.any():
        return NO_COLLECTIVES
    hidden = find_hidden_collectives(layout)
    if hidden is None:
        return None
    return Unseen(
        verdict="computations wait inside for collectives that are not recorded",
        reason=(
            "Computations of DP peers end together although they began apart "
            f"({', '.join(hidden.where)}): collectives inside of them are not recorded, and what "
            "waits looks slow. Record them, with their own start and end."
        ),
    )
