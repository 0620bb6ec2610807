"""The report of a session, schema ``paceline.report/1``: what pages, API and command line show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.diagnose import diagnose
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.places import JobFacts
from app.analysis.diagnosis.verdict import verdict
from app.analysis.json_text import plain
from app.analysis.mitigation.predictions import predict_fixes
from app.analysis.mitigation.template import recommend_template
from app.analysis.replay.confidence import Interval, bootstrap
from app.analysis.replay.fidelity import distrust, late_launches
from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS, FloatArray
from app.analysis.replay.metrics import (
    Contribution,
    Metrics,
    measure,
    rank_workers,
)
from app.analysis.replay.microbatches import compute_ratios, forward_backward
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.trace.model import REPLAYED_OP_TYPES, Trace
from app.analysis.wording import percent
from app.errors import Fault, UnanalyzableError

SCHEMA: Final = "paceline.report/1"

# A replay further than this from the recording says nothing about the recording (paper, section 6).
DISCREPANCY_LIMIT: Final = 0.05
# Fewer steps say little about the job: medians and the bootstrap need a population.
MIN_STEPS: Final = 5
# Points of the forward-backward scatter that travel with the report.
SAMPLE_POINTS: Final = 700
PIECE_ROWS: Final = 1 << 17
# Workers whose slowdown gets an interval.
WORST_WORKERS: Final = 10
SECONDS_AN_HOUR: Final = 3600
NS_A_SECOND: Final = 1e9
# Clocks that are further apart than this share of a step are warned of.
CLOCK_WARNING: Final = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """What the analysis of a session gives.

    Parameters
    ----------
    document : dict
        The report as JSON types, without NaN or infinities. `job` and `session` are None; whoever
        knows them fills them in.
    heatmaps : float32 array, shape (steps, dp, pp)
        Slowdown of each step if only this worker kept its recorded durations (exact S_w), the
        steps in the order of ``document["steps"]["analyzed"]``.
    """

    document: dict[str, Any]
    heatmaps: NDArray[np.float32]


def analyze(trace: Trace) -> Analysis:
    """Replay a session with and without stragglers and report what that says.

    Raises
    ------
    UnanalyzableError
        No verdict can come from the trace: ``trace.rank_missing``, ``trace.no_complete_step``,
        ``trace.too_few_steps``, ``trace.transfers_unmatched``, ``trace.dependency_cycle``…
    """
    replayed = prepare_replay(trace)
    _require_steps(replayed)
    metrics = measure(replayed)
    ideal = metrics.ideal_s[:, None, None]
    return Analysis(
        document=_document(trace, replayed, metrics),
        heatmaps=(metrics.by_worker / ideal).astype(np.float32),
    )


def _require_steps(replayed: Replayed) -> None:
    complete = len(replayed.steps)
    if complete >= MIN_STEPS:
        return
    message = f"{complete} complete steps, at least {MIN_STEPS} are needed"
    faults = [Fault("too_few_steps", message, column="step")]
    faults += [
        Fault("dropped_step", f"Step {item.step}: {item.reason}") for item in replayed.dropped
    ]
    raise UnanalyzableError(
        message, code="trace.too_few_steps", faults=tuple(faults[:MAX_NAMED_FAULTS])
    )


def _document(trace: Trace, replayed: Replayed, metrics: Metrics) -> dict[str, Any]:
    layout, sizes = replayed.layout, trace.meta.sizes
    slowdown, discrepancy = metrics.slowdown, metrics.discrepancy
    waste = 1 - 1 / slowdown
    exact = metrics.relative(metrics.by_worker)
    by_dp, by_pp = metrics.relative(metrics.by_dp), metrics.relative(metrics.by_pp)
    by_optype = {name: float(metrics.relative(s)) for name, s in metrics.by_optype.items()}
    forward_ratio, backward_ratio = compute_ratios(replayed)
    correlation = forward_backward(replayed)
    worst = rank_workers(metrics.by_worker.mean(axis=0))[:WORST_WORKERS]
    intervals = bootstrap(metrics, worst)
    trusted = discrepancy <= DISCREPANCY_LIMIT
    late = [] if trusted else late_launches(replayed, metrics)
    diagnosis = diagnose(trace, replayed, metrics)
    causes = diagnosis.causes_within(DISCREPANCY_LIMIT)
    fixes = predict_fixes(replayed, metrics, diagnosis, causes, trace.meta.hosts, trusted=trusted)
    steps = metrics.ideal_s[:, None]
    document = {
        "schema": SCHEMA,
        "job": None,
        "session": None,
        "trial_name": trace.meta.trial_name,
        "sizes": {
            "dp": sizes.dp,
            "pp": sizes.pp,
            "tp": sizes.tp,
            "cp": sizes.cp,
            "vpp": sizes.vpp,
            "world": sizes.world,
        },
        "hosts": {str(rank): host for rank, host in trace.meta.hosts.items()},
        "gpus": {str(rank): gpu for rank, gpu in trace.meta.gpus.items()},
        "workers": {"rank": layout.ranks.tolist()},
        "steps": {
            "analyzed": replayed.steps.tolist(),
            "dropped": [{"step": item.step, "reason": item.reason} for item in replayed.dropped],
        },
        "coverage": _coverage(trace, replayed, metrics),
        "clocks": _clocks(trace, replayed, metrics),
        "fidelity": {
            "discrepancy": discrepancy,
            "limit": DISCREPANCY_LIMIT,
            "verdict": trusted,
            "reason": None if trusted else distrust(replayed, metrics, late, DISCREPANCY_LIMIT),
            # replayed one at a time, and only where the verdict is withheld
            "late_launches": [item.as_document() for item in late],
        },
        "slowdown": slowdown,
        "slowdown_ci95": list(intervals.slowdown),
        "waste": waste,
        "waste_ci95": list(intervals.waste),
        "gpu_hours_lost": sizes.world
        * float((metrics.simulated_s - metrics.ideal_s).sum())
        / SECONDS_AN_HOUR,
        "gpu_hours_lost_per_hour": sizes.world * waste,
        "launch_slowdown": float(metrics.recorded_s.mean() / metrics.simulated_s.mean()),
        # replayed one type at a time: delays that hide behind one another count in each
        "launch_by_optype": metrics.launch_by_optype,
        "k50": metrics.k50,
        "step_times": {
            "recorded": metrics.recorded_s.tolist(),
            "simulated": metrics.simulated_s.tolist(),
            "ideal": metrics.ideal_s.tolist(),
        },
        "step_slowdown": (metrics.simulated_s / metrics.ideal_s).tolist(),
        "by_optype": by_optype,
        "waste_by_optype": {name: 1 - 1 / value for name, value in by_optype.items()},
        "by_dp": by_dp.tolist(),
        "by_pp": by_pp.tolist(),
        "per_step": {
            "by_optype": {
                name: (times / metrics.ideal_s).tolist()
                for name, times in metrics.by_optype.items()
            },
            "by_dp": (metrics.by_dp / steps).T.tolist(),
            "by_pp": (metrics.by_pp / steps).T.tolist(),
            "launch_slowdown": (metrics.recorded_s / metrics.simulated_s).tolist(),
        },
        "by_worker": {
            "exact": exact.tolist(),
            "approximate": np.minimum(by_dp[:, None], by_pp[None, :]).tolist(),
            "forward_ratio": _finite(forward_ratio),
            "backward_ratio": _finite(backward_ratio),
            "worst": [
                {"worker": list(worker), "slowdown": float(exact[worker]), "ci95": list(interval)}
                for worker, interval in zip(worst, intervals.workers, strict=True)
            ],
        },
        "m_w": {
            **_contribution(metrics, metrics.worst_workers, metrics.m_w, intervals.m_w),
            "workers": [list(worker) for worker in metrics.worst],
        },
        "m_s": _contribution(metrics, metrics.last_stage, metrics.m_s, intervals.m_s),
        "fb_correlation": correlation.as_document(SAMPLE_POINTS),
        "causes": [_cause(cause) for cause in causes],
        "diagnosis": {
            "ruled_out": list(diagnosis.ruled_out),
            "cannot_judge": [
                {"cause": cause, "reason": reason} for cause, reason in diagnosis.unjudged.items()
            ],
            "lost_s": diagnosis.lost_s,
            "slowdown": diagnosis.slowdown,
        },
        "recommendations": [fix.as_document() for fix in fixes],
        "template": recommend_template(trace, replayed, causes, float(metrics.simulated_s.mean()))
        if trusted
        else None,
    }
    facts = JobFacts(
        trace.meta.hosts,
        layout.ranks.tolist(),
        _finite(forward_ratio),
        _finite(backward_ratio),
        by_optype,
    )
    document["verdict"] = plain(
        verdict(facts, metrics, causes, diagnosis.slowdown, DISCREPANCY_LIMIT)
    )
    return document


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "cause": cause.cause,
        "contribution": cause.contribution,
        "cost_s": cause.cost_s,
        "confidence": cause.confidence,
        "evidence": [line.text for line in cause.evidence],
        "views": [plain(line.view) for line in cause.evidence],
        "where": plain(cause.where),
        "figure": plain(cause.figure),
        "runner_up": cause.runner_up,
    }


def _clocks(trace: Trace, replayed: Replayed, metrics: Metrics) -> dict[str, Any]:
    clocks = replayed.clocks
    step_s = float(metrics.recorded_s.mean())
    largest_s = float(np.abs(clocks.offsets_ns).max()) / NS_A_SECOND
    residual_s = float(clocks.residual_ns.max()) / NS_A_SECOND
    warnings = []
    if largest_s > CLOCK_WARNING * step_s:
        warnings.append(
            f"Clocks are up to {largest_s * 1e3:.1f} ms apart, {percent(largest_s / step_s)} of a "
            "step: synchronize the hosts"
        )
    if residual_s > CLOCK_WARNING * step_s and not clocks.unconnected:
        warnings.append(
            f"Even aligned, ends that belong together are up to {residual_s * 1e3:.1f} ms apart, "
            f"{percent(residual_s / step_s)} of a step: clocks move between steps, and S may be off"
            + (". Absolute times would tell by how much" if trace.step_relative else "")
        )
    if clocks.unconnected:
        warnings.append(
            f"No recorded communication connects {len(clocks.unconnected)} groups of ranks: "
            "their clocks are compared by the boundaries of steps"
        )
    return {
        "aligned": clocks.aligned,
        "absolute": not trace.step_relative,
        "offsets_ns": clocks.offsets_ns.tolist(),
        "residual_ns": clocks.residual_ns.tolist(),
        "drift_ppm": None if clocks.drift_ppm is None else clocks.drift_ppm.tolist(),
        "unconnected": [list(worker) for worker in clocks.unconnected],
        "warnings": warnings,
    }


def _coverage(trace: Trace, replayed: Replayed, metrics: Metrics) -> dict[str, Any]:
    recreated = replayed.recreated
    counts = _count_by_type(trace)
    known = len(REPLAYED_OP_TYPES)
    return {
        "ranks_expected": trace.meta.sizes.workers,
        "ranks_present": int(replayed.layout.ranks.size),
        "operations": len(trace),
        "operations_replayed": sum(group.layout.start_ns.size for group in replayed.groups),
        "recreated": {
            "operations": recreated.total,
            "by_optype": recreated.by_optype,
            "by_worker": recreated.by_worker.tolist(),
        },
        "unknown_op_types": {
            name: count
            # by name: their codes follow the order in which they came
            for name, count in sorted(zip(trace.op_names[known:], counts[known:], strict=True))
            if count
        },
        "unanswered": {name: counts[REPLAYED_OP_TYPES.index(name)] for name in replayed.unanswered},
        "absent_op_types": [
            name for name, count in zip(REPLAYED_OP_TYPES, counts, strict=False) if not count
        ],
        "clamped_transfers": replayed.clamped,
        "clamped_launch_delays": metrics.clamped_delays,
    }


def _count_by_type(trace: Trace) -> list[int]:
    """Count operations of each type, in pieces: `bincount` widens all that it is given."""
    counts = np.zeros(len(trace.op_names), dtype=np.int64)
    for first in range(0, len(trace), PIECE_ROWS):
        counts += np.bincount(trace.op[first : first + PIECE_ROWS], minlength=len(counts))
    return counts.tolist()


def _contribution(
    metrics: Metrics,
    contribution: Contribution,
    removal: float | None,
    interval: Interval | None,
) -> dict[str, Any]:
    """Return both attributions; with one stage there is no last one to blame (section 5.2)."""
    addition = metrics.addition(contribution) if removal != 0.0 else 0.0
    return {
        "rem": removal,
        "add": addition,
        "ci95": None if interval is None else list(interval),
        "trem_s": float(contribution.removed_s.mean()),
        "tadd_s": float(contribution.kept_s.mean()),
    }


def _finite(values: FloatArray) -> list[list[float | None]]:
    return [[x if math.isfinite(x) else None for x in row] for row in values.tolist()]
