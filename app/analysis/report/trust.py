"""Coverage of the recording, clocks, and fidelity of the replay, as fields of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.diagnose import Diagnosis
from app.analysis.quantities import NS_A_SECOND, FloatArray
from app.analysis.replay.adaptations.kind import SENTENCES
from app.analysis.replay.clock_alignment import clocks_apart_ns
from app.analysis.replay.clock_steps import ClockStep
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT, Delaying, distrust, late_launches
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.missing_operations import collectives_with_absent
from app.analysis.replay.no_verdict import Unseen
from app.analysis.replay.session import Replayed
from app.analysis.report.coverage import (
    Clocks,
    Coverage,
    Fidelity,
    LateOpType,
    LateWorker,
    MadeAdaptation,
    MissingWorker,
    Recreated,
)
from app.analysis.trace.metadata import unmapped_of
from app.analysis.trace.model import KNOWN_OP_TYPES, REPLAYED_OP_TYPES, Trace
from app.analysis.wording import NBSP, name_list, percent

PIECE_ROWS: Final = 1 << 17
# The time in collectives with missing workers is mentioned from this share of a step.
WORTH_SAYING: Final = 0.05
CLOCK_WARNING: Final = 0.01  # share of a step from which clock offsets are warned of


def fidelity_of(
    replayed: Replayed, metrics: Metrics, unseen: Unseen | None, diagnosis: Diagnosis
) -> Fidelity:
    """Return the difference between replay and recording, with the reason if it is too large."""
    near = metrics.discrepancy <= DISCREPANCY_LIMIT
    # Late launches take one replay for each operation type, so they are computed only if the
    # verdict is withheld.
    late = [] if near else late_launches(replayed, metrics)
    reason = None
    if unseen is not None:
        reason = unseen.reason
    elif not near:
        titles = tuple(title_of(name) for name in diagnosis.delaying)
        delaying = Delaying(titles, diagnosis.discrepancy) if titles else None
        reason = distrust(replayed, metrics, late, DISCREPANCY_LIMIT, delaying)
    return Fidelity(
        discrepancy=metrics.discrepancy,
        limit=DISCREPANCY_LIMIT,
        verdict=near and unseen is None,
        reason=reason,
        adaptations=tuple(
            MadeAdaptation(
                adaptation=item.name.value,
                sentence=SENTENCES[item.name],
                where=item.sign.where,
                confidence=item.sign.confidence,
                discrepancy_before=item.before,
                discrepancy_after=item.after,
            )
            for item in replayed.adaptations
        ),
        late_launches=tuple(
            LateOpType(
                item.op_type,
                item.share,
                tuple(LateWorker(worker, share) for worker, share in item.workers),
            )
            for item in late
        ),
    )


def clocks_of(trace: Trace, replayed: Replayed, metrics: Metrics, *, timed: bool) -> Clocks:
    """Return the offsets of the ranks' clocks, with warnings.

    Recordings of different sessions (`timed` is False) get no warnings.
    """
    clocks = replayed.clocks
    step_s = metrics.recorded_step_s
    largest_s = float(np.abs(clocks.offsets_ns).max()) / NS_A_SECOND
    residual_s = float(clocks.residual_ns.max()) / NS_A_SECOND
    warnings = [_set_clock(trace, replayed, item) for item in clocks.clock_steps]
    if largest_s > CLOCK_WARNING * step_s and (
        clocks.unconnected or _clocks_differ(replayed, clocks.offsets_ns)
    ):
        warnings.append(
            f"Clocks are up to {largest_s * 1e3:.1f} ms apart, {percent(largest_s / step_s)} of a "
            "step: synchronize the hosts"
        )
    if residual_s > CLOCK_WARNING * step_s and not clocks.unconnected and _clocks_differ(replayed):
        warnings.append(
            f"Even aligned, ends that belong together are up to {residual_s * 1e3:.1f} ms apart, "
            f"{percent(residual_s / step_s)} of a step: clocks move between steps, and S may be off"
            + (". Absolute times would tell by how much" if trace.step_relative else "")
        )
    unconnected = tuple(item for item in clocks.unconnected if item not in replayed.absent)
    if len(unconnected) > 1:
        warnings.append(
            f"No recorded communication connects {len(unconnected)} groups of ranks: "
            "their clocks are compared by the boundaries of steps"
        )
    return Clocks(
        aligned=clocks.aligned,
        absolute=not trace.step_relative,
        offsets_ns=by_cell(clocks.offsets_ns),
        residual_ns=by_cell(clocks.residual_ns),
        drift_ppm=None if clocks.drift_ppm is None else by_cell(clocks.drift_ppm),
        unconnected=unconnected if len(unconnected) > 1 else (),
        warnings=tuple(warnings) if timed else (),
        settings=clocks.clock_steps,
    )


def _set_clock(trace: Trace, replayed: Replayed, setting: ClockStep) -> str:
    """Return the warning that a clock was set: the rank, the offset and the time."""
    ranks = [int(replayed.layout.ranks[worker]) for worker in setting.workers]
    hosts = sorted({trace.meta.hosts[rank] for rank in ranks if rank in trace.meta.hosts})
    if len(ranks) == replayed.layout.ranks.size:
        whose = "all ranks"
    else:
        whose = (
            name_list("host", hosts) if hosts else name_list("rank", [str(rank) for rank in ranks])
        )
    way = "forward" if setting.by_s > 0 else "back"
    return (
        f"The clock of {whose} was set {way} by {abs(setting.by_s):,.3f} s at step {setting.step}; "
        "times count as if it had not been"
    )


def _clocks_differ(replayed: Replayed, offsets_ns: FloatArray | None = None) -> bool:
    """Return whether clocks differ; a single type of ends recorded late does not count."""
    layout = replayed.layout
    step_ns = float((layout.start_ns + layout.duration_ns).max(axis=(0, 2)).mean())
    return clocks_apart_ns(layout, replayed.graph, offsets_ns) > CLOCK_WARNING * step_ns


def coverage_of(trace: Trace, replayed: Replayed, metrics: Metrics) -> Coverage:
    """Return the recorded part of the job and the replayed part of the recording."""
    recreated = replayed.recreated
    # Operations of each type, counted in pieces, as `bincount` copies its input to int64.
    by_type = np.zeros(len(trace.op_names), dtype=np.int64)
    for first in range(0, len(trace), PIECE_ROWS):
        by_type += np.bincount(trace.op[first : first + PIECE_ROWS], minlength=len(by_type))
    counts = by_type.tolist()
    known_types = len(KNOWN_OP_TYPES)
    return Coverage(
        ranks_expected=trace.meta.sizes.workers,
        ranks_present=int(replayed.layout.ranks.size) - len(replayed.absent),
        operations=len(trace),
        operations_replayed=sum(group.layout.operations for group in replayed.groups),
        recreated=Recreated(
            operations=recreated.total,
            by_optype=recreated.by_optype,
            by_worker=by_cell(recreated.by_worker),
        ),
        unknown_op_types={
            name: count
            # sorted by name, as op codes depend on the order in which the types first occur
            for name, count in sorted(
                zip(trace.op_names[known_types:], counts[known_types:], strict=True)
            )
            if count
        },
        unanswered={name: counts[REPLAYED_OP_TYPES.index(name)] for name in replayed.unanswered},
        absent_op_types=tuple(
            name for name, count in zip(REPLAYED_OP_TYPES, counts, strict=False) if not count
        ),
        clamped_transfers=replayed.clamped,
        clamped_launch_delays=metrics.clamped_delays,
        copies=trace.copies,
        impossible_durations=replayed.impossible,
        missing=missing_of(replayed),
        unmapped=unmapped_of(trace.meta.extra),
    )


def by_cell(values: NDArray[Any]) -> tuple[tuple[Any, ...], ...]:
    """Return an array, shape (dp, pp), as nested tuples of numbers."""
    return tuple(map(tuple, values.tolist()))


def missing_of(replayed: Replayed) -> tuple[MissingWorker, ...]:
    """Return the missing workers, sorted by DP rank."""
    missing = []
    for dp, pp in replayed.absent:
        layout, others = replayed.layout, collectives_with_absent(replayed.layout, pp)
        has_collectives = len(others.nodes) > 0
        missing.append(
            MissingWorker(
                worker=(dp, pp),
                rank=int(layout.ranks[dp, pp]),
                awaited_s=float(others.taken_ns.sum(axis=0).mean()) / NS_A_SECOND
                if has_collectives
                else None,
                came_last=tuple(layout.steps[others.longer.any(axis=0)].tolist()),
            )
        )
    return tuple(missing)


def missing_in_words(missing: Sequence[MissingWorker], step_s: float) -> str | None:
    """Return the clause about missing ranks and what remains unknown; None if none is missing."""
    if not missing:
        return None
    who = name_list("rank", [str(worker.rank) for worker in missing])
    clause = f"{who} {'is' if len(missing) == 1 else 'are'} missing"
    pronoun = "it" if len(missing) == 1 else "them"
    last = sorted({step for worker in missing for step in worker.came_last})
    if last:
        return f"{clause}, and came last in {name_list('step', [str(step) for step in last])}"
    most_s = max((worker.awaited_s or 0.0 for worker in missing), default=0.0)
    if most_s >= WORTH_SAYING * step_s:
        share = percent(most_s / step_s, 0).replace(NBSP, " ")
        return (
            f"{clause}, and the others are in collectives with {pronoun} for {share} of a step: "
            f"how much of that they wait for {pronoun} is not known"
        )
    return f"{clause}, so how slow {'it is' if len(missing) == 1 else 'they are'} is not known"
