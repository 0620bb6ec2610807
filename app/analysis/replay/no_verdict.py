"""Reasons to withhold a verdict although the replay agrees with the recording.

The reasons are waiting that the recording does not separate from computing, files of different
attempts of a job, and a replay in which the job would take longer without stragglers.
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
from app.analysis.wording import name_list, percent

# The computations of DP peers begin apart if their begins differ by more than this share of their
# duration…
_APART: Final = 0.1
# …and end together if their ends differ by at most this share of the difference between their
# begins.
_TOGETHER: Final = 0.2
# Share of the computations with different begins that must end together, and the smallest number of
# computations with different begins.
_REGULARLY: Final = 0.8
_LEAST_CASES: Final = 10


def find_hidden_collectives(layout: Layout) -> Sign | None:
    """Return where computations wait for unrecorded collectives inside them; None if they do not.

    The sign of such waiting is that computations of DP peers regularly end together although they
    began apart. Their durations then contain waiting, which no replay can separate.
    """
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
    waiting = (cases >= _LEAST_CASES) & (hidden >= _REGULARLY * cases)
    if not waiting.any():
        return None
    where = []
    for number in np.flatnonzero(waiting).tolist():
        stage, code = divmod(number, len(layout.op_names))
        where.append(f"{layout.op_names[code]} on stage {stage}")
    return Sign(tuple(where), float((hidden[waiting] / cases[waiting]).mean()))


# Largest difference between the rates of two clocks of a session: ntpd corrects clocks by at most
# this rate.
FASTEST_PPM: Final = 500.0
# A difference between the rates of two clocks is significant if over a session it moves them apart
# by this many residuals.
ABOVE_RESIDUAL: Final = 5.0
# Largest residual of aligned clocks of a single session, as a share of a step.
RESIDUAL_OF_STEP: Final = 0.005
NS_A_SECOND: Final = 1e9


def attempts_apart(layout: Layout, clocks: RankClocks) -> tuple[list[int], float] | None:
    """Return the ranks of a later attempt of the job, and its delay, s; None with a single attempt.

    Files named by rank may come from several attempts of a job. Two attempts are apart by more than
    the length of a session, and their steps differ in length. So if their times are aligned like
    clocks, one clock seems to run faster than any real clock does, or residuals stay large. Return
    None if the clocks can be those of a single session.
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


# Ends of the same collectives fit no common clock if they typically remain apart by this share of a
# step, about as much as stragglers cost, or fit only clocks with a drift that no real clock has.
MISFIT_OF_STEP: Final = 0.1


def fits_no_clock(replayed: Replayed) -> Unseen | None:
    """Return why ranks cannot be compared if ends of collectives stay apart; None if they fit.

    Without a pipeline, only collectives compare ranks, and those of the same number in a step are
    taken for the same one. Ends that fit no offsets and rates of clocks contradict that.
    """
    layout, clocks = replayed.layout, replayed.clocks
    if layout.pp > 1 or layout.dp == 1 or replayed.one_clock or clocks.drift_ppm is None:
        return None
    step_ns = float(median((layout.start_ns + layout.duration_ns).max(axis=(0, 2))))
    ppm = float(np.ptp(clocks.drift_ppm))
    drifts_ns = ppm / PPM * float(np.ptp(layout.begin_ns)) if ppm > FASTEST_PPM else 0.0
    apart_ns = max(float(clocks.residual_ns.max()), drifts_ns)
    if apart_ns <= MISFIT_OF_STEP * step_ns:
        return None
    return Unseen(
        verdict="ends of the same collectives fit no common clock, so ranks cannot be compared",
        reason=(
            "The ends of a collective are one moment, but no clocks bring them nearer than "
            f"{apart_ns / 1e6:.0f} ms, {percent(apart_ns / step_ns, 0)} of a step: ranks recorded "
            "different steps under the same number, files are of different runs, or clocks jump. "
            "Record the same steps of one run on all ranks."
        ),
        timed=False,
    )


# Smallest plausible slowdown S. Values slightly below 1 are possible, since ideal durations are
# means and medians; smaller values are faults of the recording or the replay.
LEAST_SLOWDOWN: Final = 0.97


@dataclass(frozen=True, slots=True)
class Unseen:
    """Reason why a report gives no verdict."""

    verdict: str  # clause after "No verdict: "
    reason: str  # sentences, with what would help
    timed: bool = True  # whether the gaps between steps are reliable all the same


NO_COLLECTIVES: Final = Unseen(
    verdict="waiting cannot be told from computing, no data-parallel collective is recorded",
    reason=(
        "No collective of the data-parallel ranks is recorded, so waiting cannot be told from "
        "computing here: pass the wrapped model to attach(model=…), or record what the ranks "
        "exchange, with its own start and end."
    ),
)


def unseen_of(replayed: Replayed) -> Unseen | None:
    """Return why no worker can be blamed; None if a verdict is possible."""
    attempts = attempts_apart(replayed.layout, replayed.clocks)
    if attempts is None:
        return unseen_waiting(replayed.layout) or fits_no_clock(replayed)
    ranks, by_s = attempts
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
    """Return the reason why a slowdown below 1 cannot be right; None if the slowdown is plausible.

    The reason names faults of the recording. If there are none, the sizes or the replay must be
    wrong.
    """
    if slowdown >= LEAST_SLOWDOWN:
        return None
    sizes = f"DP {replayed.layout.dp} × PP {replayed.layout.pp}"
    signs = []
    if replayed.clamped:
        signs.append(f"{replayed.clamped:,} transfers end before they begin")
    if replayed.clocks.clock_steps:
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
    """Return why the recording does not separate waiting from computing; None if it does.

    Without a pipeline, DP ranks wait for each other only in collectives, so collectives must be
    recorded. In a pipeline, transfers show the waiting within each replica.
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
