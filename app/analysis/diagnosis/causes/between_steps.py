"""Between steps: idle time between steps without recorded operations, longer than usual.

Ranks that stop together may resume one after another; the delay of the later ranks within the next
step has the same cause. A rank also stands still alone: if the loading of its batches is recorded,
a later begin of its step is no wait for data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, needs_step_gaps
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding, Launches
from app.analysis.diagnosis.locations import Hosts, JobFacts, StepView, Where
from app.analysis.diagnosis.observation import lower_median, summed
from app.analysis.diagnosis.periodic_standstills import listed
from app.analysis.diagnosis.session_view import Signs
from app.analysis.diagnosis.standstills import (
    empty_gap_loss,
    unloaded_first_delays,
    unnamed_first_delays,
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether ranks stand still before single steps."""

    # A rank stands still when it begins a step this share of a step later than usual …
    standstill: float = 0.05
    # …if it is the rank of this share of the standstills; else another rank stands still each time
    of_one_rank: float = 0.5
    fewest_rotating: int = 6  # …or if fewer than this many steps have one


THRESHOLDS: Final = Thresholds()


def _find(signs: Signs) -> Finding | None:
    """Return the standstills before steps that lengthen these within steps; None without any."""
    findings = [found for found in (_after_gaps(signs), _of_ranks(signs)) if found is not None]
    if not findings:
        return None
    late_ns = summed(finding.launches.late_ns for finding in findings)
    return Finding(
        change=Change(on_time={node: late > 0 for node, late in late_ns.items()}),
        evidence=tuple(line for finding in findings for line in finding.evidence),
        where=findings[-1].where,
        launches=Launches(late_ns),
    )


def _after_gaps(signs: Signs) -> Finding | None:
    """Return the late first launches of steps after a long gap; None if no launch is late."""
    gaps = signs.step_gaps
    if gaps is None or not gaps.is_worth_naming(gaps.stalled_ns):
        return None
    after_gap = np.isin(signs.observation.layout.steps, gaps.turns.steps[gaps.stalled_ns > 0])
    late_ns = {}
    for node, delay in unnamed_first_delays(signs).items():
        typical = np.median(delay[~after_gap]) if not after_gap.all() else 0.0
        late = np.where(after_gap[:, None], np.maximum(delay - typical, 0.0), 0.0)
        if late.any():
            late_ns[node] = late
    if not late_ns:
        return None
    return Finding(
        change=Change(),
        evidence=(Evidence("Some workers go on later than others after these gaps"),),
        launches=Launches(late_ns),
    )


def _of_ranks(signs: Signs) -> Finding | None:
    """Return the standstills of ranks whose loaders are recorded; None without any.

    The first operations of the steps after long gaps are those of `_after_gaps`.
    """
    layout, gaps = signs.observation.layout, signs.step_gaps
    if gaps is None:
        return None
    after_gap = np.isin(layout.steps, gaps.turns.steps[gaps.stalled_ns > 0])
    if not gaps.is_worth_naming(gaps.stalled_ns):
        after_gap[:] = False
    least_ns = THRESHOLDS.standstill * signs.step_ns
    late_ns = {}
    for node, delay in unloaded_first_delays(signs).items():
        usual = lower_median(np.median(delay, axis=0), axis=0)
        beyond = np.where(after_gap[:, None], 0.0, delay - usual)
        late = np.where(beyond >= least_ns, beyond, 0.0)
        if late.any():
            late_ns[node] = late
    if not late_ns:
        return None
    every = np.max(np.stack(list(late_ns.values())), axis=0)
    by_step = every.max(axis=1)
    struck = by_step > 0
    ranks = np.bincount(every.argmax(axis=1)[struck], minlength=layout.dp)
    alone = int(ranks.argmax())
    if struck.sum() >= THRESHOLDS.fewest_rotating and (
        ranks[alone] < THRESHOLDS.of_one_rank * struck.sum()
    ):
        return None
    of_one = layout.dp > 1 and bool((ranks > 0).sum() == 1)
    who = f"DP rank {alone} launches" if of_one else "DP ranks launch"
    line = Evidence(
        f"{who} nothing for {by_step[struck].mean() / 1e6:.0f} ms before "
        f"{listed(layout.steps[struck].tolist())}, and no batch is loaded meanwhile: the loaders' "
        "own times are recorded. That may be a checkpoint, or any other pause between steps",
        StepView(step=int(layout.steps[int(by_step.argmax())])),
    )
    where = Where(dp=alone) if of_one else Where()
    return Finding(Change(), (line,), where, launches=Launches(late_ns))


def _because(cause: Cause, job: JobFacts) -> str:  # noqa: ARG001 - no host is to blame
    who = "the job stands" if cause.where.dp is None else f"DP rank {cause.where.dp} stands"
    return f"{who} still between steps, with nothing recorded"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:  # noqa: ARG001 - no host is to blame
    who = "the job waits" if cause.where.dp is None else f"DP rank {cause.where.dp} waits"
    how = (
        "The time from one step to the next without these gaps"
        if cause.between_s
        else "Replayed with the first operations of these steps launched as soon as in the others"
    )
    return Remedy(
        "name_standstill",
        f"Find what {who} for between steps",
        f"{how}. Recorded with paceline_client (monitor.between) they get their name: data "
        "loading, checkpoints or evaluations.",
    )


BETWEEN_STEPS: Final = CauseKind(
    name="between_steps",
    title="Between steps",
    word="between",
    sign="Between some steps, or all, nothing is recorded for far longer than usual, by any rank "
    "or by one whose loading of batches is recorded.",
    blames_machine=False,
    cannot_judge=needs_step_gaps,
    because=_because,
    find=_find,
    between=empty_gap_loss,
    remedy=_remedy,
    phase=Phase.SPECIAL,
    over_steps=True,
)
